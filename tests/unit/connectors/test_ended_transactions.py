"""Of which transaction an event is, by what the transaction topic tells: each kind of position."""

import pytest

from lakemark.connectors.mysql.log_place import BinlogEnd
from lakemark.connectors.mysql.mysql_database import MySqlDatabase
from lakemark.connectors.mysql.positions import POSITIONS as MYSQL
from lakemark.connectors.mysql.positions import pack as mysql_at
from lakemark.connectors.postgres.log_place import Lsn
from lakemark.connectors.postgres.positions import POSITIONS as POSTGRES
from lakemark.connectors.postgres.positions import pack as postgres_at
from lakemark.connectors.postgres.postgres_database import PostgresDatabase
from lakemark.model.arrival import POSITIONS as ARRIVAL
from lakemark.model.positions import LoggedEvent

UUID = "f6ef2083-e9c7-11f1-aa9a-02fc00000001"


@pytest.mark.parametrize(
    ("rules", "text", "named"),
    [
        (POSTGRES, "571:800", LoggedEvent("", 800, 0)),
        (POSTGRES, "571", None),
        (POSTGRES, "571:-8", None),
        (POSTGRES, "", None),
        (MYSQL, f"{UUID}:147", LoggedEvent(UUID, 147, 0)),
        (MYSQL, f"{UUID}:tag:9", LoggedEvent(f"{UUID}:tag", 9, 0)),
        (MYSQL, "0-101-193", LoggedEvent("0", 193, 0)),
        (MYSQL, "file=binlog.000003,pos=4", None),
        (ARRIVAL, "571:800", None),
    ],
)
def test_ids_of_transactions(rules, text, named):
    assert rules.ended(text) == named


def test_an_event_of_postgresql_is_of_the_first_transaction_that_commits_behind_its_last_commit():
    number = POSTGRES.numbering(["7:800", "5:900", "9:1000"], {"": 700})
    at = {last: number(None, postgres_at(0, last, 3)) for last in (600, 700, 799, 800, 900, 1000)}
    assert at == {600: -1, 700: 0, 799: 0, 800: 1, 900: 2, 1000: 3}
    assert POSTGRES.numbering(["7:800"], {})(None, postgres_at(0, 5, 6)) == 0


def test_an_event_of_mysql_is_of_the_transaction_that_it_names():
    number = MYSQL.numbering(["0-1-7", "1-1-3", "0-2-8"], {"0": 6})
    at = {
        gtid: number(gtid, b"") for gtid in ("0-1-5", "0-1-6", "0-1-7", "1-1-3", "0-2-8", "0-2-9")
    }
    assert at == {"0-1-5": -1, "0-1-6": -1, "0-1-7": 0, "1-1-3": 1, "0-2-8": 2, "0-2-9": 3}
    assert number(None, b"") == 3, "one that has no name is of none that has ended"


def test_whether_a_partition_is_past_what_has_ended():
    at = postgres_at(0, 799, 805)
    assert POSTGRES.has_ended(at, {}, {"": 800})
    assert not POSTGRES.has_ended(at, {}, {"": 799}), "it begins at that commit"
    assert not POSTGRES.has_ended(at, {}, {})
    seen = {"0": (8, 1), "1": (3, 2)}
    place = mysql_at(0, 3, 400, 2)
    assert MYSQL.has_ended(place, seen, {"0": 8, "1": 3})
    assert not MYSQL.has_ended(place, seen, {"0": 7, "1": 3})
    assert not MYSQL.has_ended(place, seen, {"0": 8})
    assert not ARRIVAL.has_ended(b"", {}, {})


def test_places_behind_transactions():
    place = PostgresDatabase.ended_place("571:800")
    assert place is not None
    assert place.text == "0/320"
    assert PostgresDatabase.ended_place("571") is None
    assert MySqlDatabase.ended_place("file=b.1,pos=4") is None
    mariadb = MySqlDatabase.ended_place("0-101-193")
    assert mariadb is not None
    committed = [{"partition": {"server": "s"}, "offset": {"gtids": "0-101-193"}}]
    assert mariadb.is_sent(committed, server="s")
    committed[0]["offset"]["gtids"] = "0-101-192"
    assert not mariadb.is_sent(committed, server="s")
    mysql = MySqlDatabase.ended_place(f"{UUID}:147")
    assert mysql is not None
    committed[0]["offset"]["gtids"] = f"{UUID}:1-147"
    assert mysql.is_sent(committed, server="s")


def test_whether_a_transaction_is_before_a_place():
    assert Lsn.parse("0/320").has("571:800", b"")
    assert not Lsn.parse("0/31F").has("571:800", b"")
    assert not Lsn.parse("0/320").has("odd", b"")
    assert BinlogEnd.parse(f"{UUID}:1-147").has(f"{UUID}:147", b"")
    assert not BinlogEnd.parse(f"{UUID}:1-146").has(f"{UUID}:147", b"")
    by_place = BinlogEnd.parse("binlog.000003:1234")
    assert by_place.has("0-1-1", mysql_at(0, 3, 1000))
    assert not by_place.has("0-1-1", mysql_at(0, 3, 1234)), "it begins there"
    assert not by_place.has("0-1-1", b""), "nobody knows"
