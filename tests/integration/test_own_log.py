"""The server that is asked must be the connector's: a server, and a replica with other places."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from lakemark.connectors.mysql.binlog_place import WhoseLog, newest_of
from lakemark.connectors.mysql.mysql_session import connect
from lakemark.connectors.mysql.own_log import whose_log
from lakemark.connectors.mysql.positions import POSITIONS, number_of, pack, place_of
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.settings.config import DatabaseConfig
from stack.mysql import LocalBinlogServer
from tests.kit.nightly import nightly
from tests.kit.servers import own_processes, own_server

pytestmark = [pytest.mark.integration, own_processes]

TIMEOUT = timedelta(seconds=20)
OWN, OTHER, UNKNOWN, HIDDEN = WhoseLog.OWN, WhoseLog.OTHER, WhoseLog.UNKNOWN, WhoseLog.HIDDEN
ROWS = ("Write_rows", "Update_rows", "Delete_rows")
STOP = {"mariadb": "STOP SLAVE SQL_THREAD", "mysql": "STOP REPLICA SQL_THREAD"}
GO_ON = {"mariadb": "START SLAVE SQL_THREAD", "mysql": "START REPLICA SQL_THREAD"}


@dataclass
class Pair:
    """A server and its replica, which has written something of its own before all else."""

    primary: LocalBinlogServer
    replica: LocalBinlogServer

    @property
    def product(self) -> str:
        return self.primary.connector

    def write(self, *statements: str, server: LocalBinlogServer | None = None) -> None:
        with (server or self.primary).connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def change(self) -> None:
        self.write(
            "INSERT INTO shop.t (note) VALUES ('a'), ('b')",
            "UPDATE shop.t SET note = CONCAT(note, 'c') LIMIT 1",
            "DELETE FROM shop.t LIMIT 1",
        )

    def events(self) -> list[ReachedPlace]:
        """Return where rows stand in the primary's log: as 10.11 and MySQL, and as 11.4 tell it."""
        found, name, begin = [], "", 0
        for log, pos, kind, _, _, text in self._log():
            if kind == "Gtid":
                name = text.split("'")[1] if "'" in text else text.split("GTID ")[1].split()[0]
                begin = pos
            elif kind.startswith(ROWS):
                places = (pack(0, number_of(log) or 0, at, 2) for at in (begin, pos))
                found += [ReachedPlace(place, newest_of(name)) for place in places]
        return found

    def ends(self) -> list[ReachedPlace]:
        """Return where transactions of the primary's log end."""
        found, seen = [], {}
        for log, _, kind, _, end, text in self._log():
            if kind == "Gtid":
                name = text.split("'")[1] if "'" in text else text.split("GTID ")[1].split()[0]
                seen |= newest_of(name)
            elif kind == "Xid":
                place = pack(0, number_of(log) or 0, end)
                found.append(ReachedPlace(place, dict(seen), is_between=True))
        return found

    def _log(self) -> list[tuple]:
        with self.primary.connect() as connection:
            logs = [row[0] for row in connection.execute("SHOW BINARY LOGS").fetchall()]
            return [
                row
                for log in logs
                for row in connection.execute(f"SHOW BINLOG EVENTS IN '{log}'").fetchall()
            ]

    def ask(
        self, server: LocalBinlogServer, places: list[ReachedPlace], user: str = "root"
    ) -> set[WhoseLog]:
        url = f"{server.dsn()}?ssl-mode=disabled".replace("root@", f"{user}@")
        with connect(DatabaseConfig(url=url), statement_timeout=TIMEOUT, name="test") as session:
            return {whose_log(session, place) for place in places}

    @contextmanager
    def behind(self) -> Iterator[None]:
        """Have a replica that does not apply what it gets; its log ends in a higher file."""
        self.replica.wait_for(self.primary)
        self.write(STOP[self.product], *["FLUSH LOCAL BINARY LOGS"] * 3, server=self.replica)
        try:
            yield
        finally:
            self.write(GO_ON[self.product], server=self.replica)


@pytest.fixture(
    scope="module",
    params=[
        "mariadb-11.4",
        pytest.param("mariadb-10.11", marks=nightly),
        pytest.param("mysql-9.7", marks=nightly),
    ],
)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    with own_server(request.param, directory / "one") as one:
        two = one.sibling(directory / "two", 2)
        if two.connector == "mariadb":
            two.settings = {**two.settings, "gtid_domain_id": "2"}
        two.start()
        try:
            servers = Pair(one, two)
            servers.write("CREATE DATABASE only_here", server=two)
            two.follow(one)
            rights = "XA_RECOVER_ADMIN, " if one.connector == "mysql" else ""
            servers.write(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id int AUTO_INCREMENT PRIMARY KEY, note text)",
                "CREATE USER reader@'%'",
                f"GRANT {rights}REPLICATION CLIENT ON *.* TO reader@'%'",
                "CREATE USER poor@'%'",
            )
            for _ in range(5):
                servers.change()
            yield servers
        finally:
            two.stop()


def test_every_event_of_the_connectors_log_is_found_there_and_none_in_a_replicas(pair: Pair):
    events = pair.events()
    assert len(events) >= 30
    assert pair.ask(pair.primary, events) == {OWN}
    pair.replica.wait_for(pair.primary)
    assert pair.ask(pair.replica, events) == {OTHER}


def test_where_transactions_have_ended_another_one_begins_or_the_log_ends(pair: Pair):
    assert pair.ask(pair.primary, pair.ends()) == {OWN}
    pair.replica.wait_for(pair.primary)
    assert OTHER in pair.ask(pair.replica, pair.ends())


def test_a_replica_that_is_behind_is_another_server_also_for_who_may_not_look(pair: Pair):
    with pair.behind():
        pair.change()
        newest = pair.events()[-2:]
        for user in ("root", "reader"):
            assert pair.ask(pair.primary, newest, user) <= {OWN, HIDDEN}
            assert pair.ask(pair.replica, newest, user) == {OTHER}


def test_the_rights_that_snapshots_need_suffice_on_mariadb_and_hide_the_log_on_mysql(pair: Pair):
    expected = OWN if pair.product == "mariadb" else HIDDEN
    assert pair.ask(pair.primary, pair.events(), "reader") == {expected}
    if pair.product == "mysql":
        pair.write("GRANT REPLICATION SLAVE ON *.* TO reader@'%'")
        assert pair.ask(pair.primary, pair.events(), "reader") == {OWN}
        pair.write("REVOKE REPLICATION SLAVE ON *.* FROM reader@'%'")
    assert pair.ask(pair.primary, pair.events(), "poor") == {HIDDEN}


def test_a_place_alone_has_to_be_where_something_begins(pair: Pair):
    """Where the connector began, or took a snapshot: nothing else is known of it."""
    places = [POSITIONS.outside_stream(one.position) for one in pair.events()]
    assert pair.ask(pair.primary, [ReachedPlace(place) for place in places]) == {OWN}
    within = [pack(0, *place_of(place)) for place in places]
    within = [place[:15] + bytes([place[15] ^ 1]) + place[16:] for place in within]
    assert pair.ask(pair.primary, [ReachedPlace(place) for place in within]) == {OTHER}
    began = [ReachedPlace(begun_at=POSITIONS.snapshot_of(place)) for place in places]
    assert pair.ask(pair.primary, began) == {OWN}
    assert pair.ask(pair.primary, [ReachedPlace()]) == {UNKNOWN}


def test_another_transaction_at_the_place_is_of_another_log(pair: Pair):
    first, second = pair.events()[0], pair.events()[-2]  # of 11.4: where a transaction begins
    swapped = [replace(first, transactions=second.transactions)]
    assert pair.ask(pair.primary, swapped) == {OTHER}


def test_a_log_that_was_rotated_is_the_same_and_of_a_file_that_was_removed_nothing_is_known(
    pair: Pair,
):
    before = pair.events()
    pair.write("FLUSH BINARY LOGS")
    assert pair.ask(pair.primary, before) == {OWN}
    pair.change()
    newest = pair.events()
    pair.write(f"PURGE BINARY LOGS TO '{pair.primary.position()[0]}'")
    assert pair.ask(pair.primary, before) == {UNKNOWN}
    assert pair.ask(pair.primary, newest[-6:]) == {OWN}
    beyond = [replace(newest[-1], position=pack(0, 900, 500))]
    assert pair.ask(pair.primary, beyond) == {OTHER}
