"""Server, slot, signal table and captured tables: facts in, findings out."""

from dataclasses import replace

import pytest

from lakemark.connectors.postgres import checks_tables
from lakemark.connectors.postgres.catalog import CatalogColumn
from lakemark.connectors.postgres.checks_database import (
    MUCH_LAG,
    DatabaseFacts,
    Publication,
    ServerFacts,
    SignalTable,
    Slot,
    findings,
)
from lakemark.connectors.postgres.checks_tables import Relation
from lakemark.connectors.refusals import Refusal
from lakemark.model.handling_modes import HandlingModes
from tests.kit.verdicts import ERROR, OK, WARNING, bad, of, one

SERVER = ServerFacts("h:5432/shop", "mark", "16.2", False, "logical", True, 0.1)
SLOT = Slot("shop", exists=True, active=True, wal_status="reserved", lag=1024, safe=None)
SIGNAL = SignalTable("public.debezium_signal", exists=True, columns=3, insert=True)
FACTS = DatabaseFacts(
    SERVER, SLOT, Publication("shop", exists=True, autocreate="filtered"), SIGNAL, streams=True
)
UNPUBLISHED = Refusal("not-published", "the publication shop does not have it", "hint")


def only(facts):
    (finding,) = bad(findings(facts))
    return finding


def server(**changes):
    return replace(FACTS, server=replace(SERVER, **changes))


def slot(**changes):
    return replace(FACTS, slot=replace(SLOT, **changes))


def signal(**changes):
    return replace(FACTS, signal=replace(SIGNAL, **changes))


def test_all_in_order():
    found = findings(FACTS)
    assert bad(found) == []
    assert one(found, "database").reason == "PostgreSQL 16.2 as mark"
    assert one(found, "slot").reason == "active, 0.0 MiB of log are kept for it"
    assert findings(replace(FACTS, slot=None, publication=None, signal=None))


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "mend"),
    [
        ({"standby": True}, "database", ERROR, "set database.url to the primary"),
        ({"wal_level": "replica"}, "wal_level", ERROR, "ALTER SYSTEM SET wal_level = 'logical';"),
        (
            {"reads_stats": False},
            "pg_read_all_stats",
            WARNING,
            'GRANT pg_read_all_stats TO "mark";',
        ),
        ({"skew_s": 5.5}, "clock", WARNING, "NTP"),
        ({"skew_s": -5.5}, "clock", WARNING, "NTP"),
    ],
)
def test_server(changes, check, verdict, mend):
    finding = only(server(**changes))
    assert (finding.check, finding.verdict) == (check, verdict)
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("changes", "verdict", "words", "mend"),
    [
        ({"exists": False}, ERROR, "reads another server", "database.hostname"),
        ({"active": False}, ERROR, "nobody reads", "start the connector"),
        ({"wal_status": "lost"}, ERROR, "is lost", "pg_drop_replication_slot('shop')"),
        (
            {"wal_status": "unreserved", "lag": 3 * 1024**3},
            ERROR,
            "3,072.0 MiB",
            "max_slot_wal_keep_size = '6GB'",
        ),
        ({"wal_status": "extended"}, WARNING, "kept for it", "why the connector"),
        ({"lag": MUCH_LAG + 1}, WARNING, "1,024.0 MiB", "why the connector"),
        ({"lag": MUCH_LAG + 1, "safe": 1024**2}, WARNING, "lost after 1 MiB", "keep_size = '2GB'"),
    ],
)
def test_slot(changes, verdict, words, mend):
    finding = only(slot(**changes))
    assert (finding.check, finding.verdict) == ("slot", verdict)
    assert words in finding.reason
    assert mend in finding.mend


def test_a_slot_before_the_connector_s_first_start():
    finding = only(replace(slot(exists=False), streams=False))
    assert finding.verdict is WARNING
    assert "next start creates it" in finding.reason


@pytest.mark.parametrize(
    ("mode", "verdict", "mend"),
    [
        ("disabled", ERROR, 'CREATE PUBLICATION "shop" FOR ALL TABLES;'),
        ("filtered", WARNING, "start the connector"),
    ],
)
def test_no_publication(mode, verdict, mend):
    facts = replace(FACTS, publication=Publication("shop", exists=False, autocreate=mode))
    assert (only(facts).verdict, only(facts).mend) == (verdict, mend)


def test_a_signal_table_that_may_not_be_written_to():
    finding = only(signal(insert=False))
    assert (finding.check, finding.verdict) == ("signal table", ERROR)
    assert finding.mend == (
        'GRANT USAGE ON SCHEMA "public" TO "mark";'
        ' GRANT INSERT ON "public"."debezium_signal" TO "mark";'
    )


def test_a_signal_table_that_is_missing_or_odd_or_unpublished():
    assert only(signal(exists=False)).mend.startswith('CREATE TABLE "public"."debezium_signal" (id')
    assert only(signal(columns=2)).mend.startswith('DROP TABLE "public"."debezium_signal"; CREATE')
    finding = only(signal(refusals=(UNPUBLISHED,)))
    assert finding.verdict is ERROR
    assert "snapshots never end" in finding.reason
    assert finding.mend == 'ALTER PUBLICATION "shop" ADD TABLE "public"."debezium_signal";'


# --- tables ---------------------------------------------------------------------------------

TABLE = Relation("public.orders", key=("id",), primary="orders_pkey")


def tables(*relations, publication="shop", chosen=True, binary="bytes"):
    return checks_tables.findings(
        relations,
        user="mark",
        publication=publication,
        chosen=chosen,
        modes=HandlingModes(binary=binary),
    )


def table(**changes):
    return tables(replace(TABLE, **changes))


def test_a_table_in_order():
    found = table()
    assert bad(found) == []
    assert [f.check for f in found] == [
        "select",
        "key",
        "columns",
        "replica identity",
        "publication",
    ]
    assert of(tables(TABLE, publication=""), "publication") == []


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "mend"),
    [
        (
            {"select": False},
            "select",
            ERROR,
            'GRANT USAGE ON SCHEMA "public" TO "mark"; GRANT SELECT ON "public"."orders" TO "mark";',
        ),
        ({"row_security": True}, "select", ERROR, 'ALTER ROLE "mark" BYPASSRLS;'),
        (
            {"deferrable": True, "identity": "f"},
            "key",
            WARNING,
            'ALTER TABLE "public"."orders" DROP CONSTRAINT "orders_pkey", ADD PRIMARY KEY ("id");',
        ),
        (
            {"identity": "n"},
            "replica identity",
            ERROR,
            'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT;',
        ),
        (
            {"identity": "i"},
            "replica identity",
            WARNING,
            'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT;',
        ),
        (
            {"primary": "", "ready_index": "u"},
            "replica identity",
            ERROR,
            'ALTER TABLE "public"."orders" REPLICA IDENTITY USING INDEX "u";',
        ),
        (
            {"refusals": (UNPUBLISHED,)},
            "publication",
            ERROR,
            'ALTER PUBLICATION "shop" ADD TABLE "public"."orders";',
        ),
        (
            {"refusals": (Refusal("publication-hides-columns", "hides a", "publish a"),)},
            "publication",
            ERROR,
            "publish a",
        ),
        ({"logged": False}, "tables", WARNING, 'ALTER TABLE "public"."orders" SET LOGGED;'),
    ],
)
def test_what_is_wrong_with_a_table(changes, check, verdict, mend):
    other = replace(TABLE, table="public.items")
    (finding,) = bad(tables(replace(TABLE, **changes), other))
    assert (finding.check, finding.subject) == (check, "public.orders")
    assert (finding.verdict, finding.mend) == (verdict, mend)


def test_a_table_without_a_key():
    found = table(key=(), primary="", ready_index="")
    key, identity = one(found, "key"), one(found, "replica identity")
    assert (key.verdict, identity.verdict) == (ERROR, ERROR)
    assert key.mend.startswith('ALTER TABLE "public"."orders" ADD PRIMARY KEY (<columns')
    assert identity.mend == 'ALTER TABLE "public"."orders" REPLICA IDENTITY FULL;'


def test_a_deferrable_key_without_full_identity():
    assert one(table(deferrable=True), "replica identity").verdict is ERROR


COLUMNS = (
    CatalogColumn("id", "int8"),
    CatalogColumn("note", "text"),
    CatalogColumn("price", "numeric", typmod=655366),
    CatalogColumn("free", "numeric"),
    CatalogColumn("bits", "varbit"),
    CatalogColumn("days", "_timestamp", element_type_name="timestamp"),
    CatalogColumn("tags", "_text", element_type_name="text"),
    CatalogColumn("blob", "bytea"),
)


def test_unchanged_large_values():
    found = one(table(toast=True, columns=COLUMNS), "replica identity")
    assert found.verdict is WARNING
    assert "free, bits, days that" in found.reason
    assert found.mend == 'ALTER TABLE "public"."orders" REPLICA IDENTITY FULL;'
    relation = replace(TABLE, toast=True, columns=COLUMNS)
    (finding,) = bad(tables(relation, binary="base64"))
    assert "free, bits, days, blob that" in finding.reason
    assert bad(table(toast=True, columns=COLUMNS, identity="f")) == []
    assert bad(table(toast=False, columns=COLUMNS)) == []
    kept = one(table(toast=True, columns=COLUMNS[:3]), "replica identity")
    assert (kept.verdict, "placeholder" in kept.reason) == (OK, True)


@pytest.mark.parametrize("kind", ["v", "m", "f"])
def test_views_matter_only_where_tables_were_chosen(kind):
    view = Relation("public.totals", kind=kind)
    (finding,) = bad(tables(TABLE, view))
    assert (finding.subject, finding.verdict) == ("public.totals", WARNING)
    assert bad(tables(TABLE, view, chosen=False)) == []


def test_no_table_at_all():
    (finding,) = tables()
    assert (finding.check, finding.verdict) == ("tables", ERROR)


@pytest.mark.parametrize("hidden", ["public.whole", "public.part"])
def test_of_a_partitioned_table_and_its_partitions_those_without_events_are_left_out(hidden):
    root = replace(TABLE, table="public.whole", root="public.whole", kind="p")
    part = replace(TABLE, table="public.part", root="public.whole")
    family = [
        replace(r, refusals=(UNPUBLISHED,) if r.table == hidden else ()) for r in (root, part)
    ]
    found = tables(*family)
    assert bad(found) == []
    assert {f.subject for f in found} == {"public.whole", "public.part"} - {hidden}
    neither = [replace(r, refusals=(UNPUBLISHED,)) for r in (root, part)]
    assert len(bad(tables(*neither))) == 2


# --- columns --------------------------------------------------------------------------------

ID = CatalogColumn("id", "int4", key_position=1)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (CatalogColumn("i", "_interval", element_type_name="interval", dimensions=1), "no column"),
        (CatalogColumn("b", "pg_lsn"), "b (pg_lsn) is of a type that the connector leaves out"),
        (CatalogColumn("g", "int4", generated=True), "generated, and in no event"),
        (CatalogColumn("m", "_int4", element_type_name="int4", dimensions=2), "m (int4[][]) is"),
        (CatalogColumn("n", "name"), "is null in events of the log"),
        (CatalogColumn("bits", "_bit", 3, element_type_name="bit", dimensions=1), "is null"),
    ],
)
def test_columns_that_the_lake_does_not_hold_are_said_before(column, words):
    sent = () if column.generated or "no column" in words or "leaves out" in words else (column,)
    found = one(table(columns=(ID, *sent), every_column=(ID, column)), "columns")
    assert found.verdict is WARNING
    assert words in found.reason
    assert "behind a generated column" not in found.reason
    assert "column.exclude.list" in found.mend


def test_columns_behind_a_generated_one_are_said_unless_that_one_is_sent():
    made, after = CatalogColumn("g", "int4", generated=True), CatalogColumn("z", "text")
    every = (ID, made, after)
    found = one(table(columns=(ID, after), every_column=every), "columns")
    assert "z (text) is behind a generated column" in found.reason
    assert one(table(columns=every, every_column=every), "columns").verdict is OK
    last = (ID, after, made)
    assert "behind" not in one(table(columns=(ID, after), every_column=last), "columns").reason


def test_plain_columns_are_in_order():
    several = (ID, CatalogColumn("a", "_int4", element_type_name="int4", dimensions=1))
    assert one(table(columns=several, every_column=several), "columns").verdict is OK
