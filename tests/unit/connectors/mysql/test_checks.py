"""What a server and its tables have to be, and what is said where they are not."""

import pytest

from lakemark.connectors.mysql import checks_server, checks_tables
from lakemark.connectors.mysql.binlog_place import WhoseLog
from lakemark.connectors.mysql.catalog_facts import Cascade
from lakemark.connectors.mysql.checks_server import DatabaseFacts, ServerFacts
from lakemark.connectors.mysql.checks_tables import Relation
from lakemark.connectors.mysql.connector_settings import MARIADB_TRAITS, TRAITS
from lakemark.model.findings import Verdict

GOOD = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "log_bin_compress": "OFF",
    "log_slave_updates": "ON",
    "gtid_strict_mode": "ON",
    "expire_logs_days": "10.000000",
    "server_id": "104",
}


def of_server(*, reader="5501", is_mariadb=True, may_ask=True, log=WhoseLog.OWN, **variables):
    server = ServerFacts(
        "localhost:3306", "lakemark@%", "11.4.5", is_mariadb, GOOD | variables, 0.1, may_ask
    )
    return checks_server.findings(DatabaseFacts(server, reader, log))


def bad(findings):
    return {(one.check, one.verdict) for one in findings if one.verdict is not Verdict.OK}


def test_a_server_as_it_should_be_has_nothing_to_say():
    found = of_server()
    assert bad(found) == set()
    assert {one.check for one in found} == {*checks_server.CHECKS, "clock"}


@pytest.mark.parametrize(
    ("variables", "check", "verdict"),
    [
        ({"log_bin": "OFF"}, "binary log", Verdict.ERROR),
        ({"binlog_format": "MIXED"}, "binary log", Verdict.ERROR),
        ({"binlog_row_image": "MINIMAL"}, "row image", Verdict.ERROR),
        ({"binlog_row_image": "NOBLOB"}, "row image", Verdict.ERROR),
        ({"binlog_row_value_options": "PARTIAL_JSON"}, "row image", Verdict.ERROR),
        ({"log_bin_compress": "ON"}, "log compression", Verdict.ERROR),
        ({"gtid_strict_mode": "OFF"}, "transaction ids", Verdict.WARNING),
        ({"read_only": "ON", "log_slave_updates": "OFF"}, "replication", Verdict.ERROR),
        ({"binlog_expire_logs_seconds": "3600"}, "log retention", Verdict.WARNING),
        ({"server_id": "5501"}, "server id", Verdict.ERROR),
    ],
)
def test_what_loses_events_or_stops_the_connector_is_said_with_its_mend(variables, check, verdict):
    found = of_server(**variables)
    assert bad(found) == {(check, verdict)}
    (one,) = (one for one in found if one.verdict is not Verdict.OK)
    assert one.mend


@pytest.mark.parametrize("mode", ["OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", None])
def test_mysql_without_ids_of_transactions_has_no_snapshots(mode):
    without = {name: value for name, value in GOOD.items() if name != "gtid_strict_mode"}
    variables = without if mode is None else without | {"gtid_mode": mode}
    server = ServerFacts("localhost:3306", "u", "9.7.4", False, variables, 0.1)
    found = checks_server.findings(DatabaseFacts(server, "5501"))
    assert bad(found) == {("transaction ids", Verdict.ERROR)}


def test_rights_that_lack_are_named():
    found = of_server(may_ask=False)
    assert bad(found) == {("rights", Verdict.ERROR)}
    (one,) = (one for one in found if one.check == "rights")
    assert one.mend.startswith("GRANT REPLICATION CLIENT, XA_RECOVER_ADMIN")


@pytest.mark.parametrize(
    ("log", "is_mariadb", "verdict", "mend"),
    [
        (WhoseLog.OTHER, True, Verdict.ERROR, "let database.url lead to"),
        (WhoseLog.OTHER, False, Verdict.ERROR, "let database.url lead to"),
        (WhoseLog.HIDDEN, True, Verdict.WARNING, "GRANT BINLOG MONITOR"),
        (WhoseLog.HIDDEN, False, Verdict.WARNING, "GRANT REPLICATION SLAVE"),
        (WhoseLog.UNKNOWN, False, Verdict.OK, ""),
    ],
)
def test_a_server_whose_log_may_be_another_one_is_named(log, is_mariadb, verdict, mend):
    (one,) = (f for f in of_server(log=log, is_mariadb=is_mariadb) if f.check == "same log")
    assert one.verdict is verdict
    assert one.mend.startswith(mend)


def of_tables(*relations, is_mariadb=True, generated_lost=False, chosen=True):
    return checks_tables.findings(
        relations,
        user="u",
        is_mariadb=is_mariadb,
        generated_lost=generated_lost,
        chosen=chosen,
    )


FINE = Relation("shop.orders", key=("id",), types=(("id", "int"),))


def test_tables_as_they_should_be():
    found = of_tables(FINE)
    assert bad(found) == set()
    assert {one.check for one in found} == {*checks_tables.CHECKS}


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        ({"select": False}, {("select", Verdict.ERROR)}),
        ({"key": ()}, {("key", Verdict.ERROR)}),
        ({"types": (("a", "inet6"),)}, {("columns", Verdict.ERROR)}),
        ({"generated": ("g",)}, set()),
        ({"cascades": (Cascade("fk", "shop.not_captured"),)}, {("cascades", Verdict.WARNING)}),
    ],
)
def test_what_a_table_lacks(relation, expected):
    changed = Relation(**{"table": "shop.orders", "key": ("id",), **relation})
    assert bad(of_tables(changed)) == expected


def test_generated_columns_stop_the_connector_where_the_log_lacks_them():
    changed = Relation("shop.orders", key=("id",), generated=("g",))
    assert bad(of_tables(changed, generated_lost=True)) == {("columns", Verdict.ERROR)}


def test_a_table_is_read_again_after_the_deletes_of_a_captured_parent():
    child = Relation("shop.child", key=("id",), cascades=(Cascade("fk", FINE.table),))
    (said,) = [
        f for f in of_tables(FINE, child) if (f.check, f.subject) == ("cascades", child.table)
    ]
    assert said.verdict is Verdict.OK
    assert FINE.table in said.reason


def test_a_view_that_is_named_is_a_mistake_and_no_table_is_an_error():
    view = Relation("shop.v", is_view=True)
    assert bad(of_tables(view)) == {("tables", Verdict.WARNING), ("tables", Verdict.ERROR)}
    assert bad(of_tables(FINE, view, chosen=False)) == set()


def test_settings_that_lose_events_are_warned_of():
    settings = {
        "event.deserialization.failure.handling.mode": "warn",
        "inconsistent.schema.handling.mode": "skip",
        "snapshot.locking.mode": "none",
        "include.schema.changes": "false",
    }
    assert {problem.path for problem in TRAITS.problems(settings)} == {*settings}
    assert [*TRAITS.problems({})] == []
    (finding,) = MARIADB_TRAITS.findings({"provide.transaction.metadata": "false"})
    assert finding.verdict is Verdict.WARNING
    (finding,) = MARIADB_TRAITS.findings({"provide.transaction.metadata": "TRUE"})
    assert finding.verdict is Verdict.OK


def test_read_only_snapshots_of_mariadbs_connector_are_warned_of():
    settings = {"provide.transaction.metadata": "true", "read.only": "true"}
    _, finding = MARIADB_TRAITS.findings(settings)
    assert (finding.subject, finding.verdict) == ("read.only", Verdict.WARNING)
    assert len([*TRAITS.findings(settings)]) == 1


def test_the_schemes_of_the_two_are_their_own():
    assert TRAITS.is_of("mysql://localhost/shop")
    assert not TRAITS.is_of("mariadb://localhost/shop")
    assert MARIADB_TRAITS.is_of("MariaDB://localhost/shop")
