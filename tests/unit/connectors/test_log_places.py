"""Places in a log as databases print them, and what proves that a connector has sent all before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.log_place import BinlogEnd, has_all, transactions_of
from lakemark.connectors.mysql.positions import pack as binlog
from lakemark.connectors.postgres.log_place import Lsn
from lakemark.connectors.postgres.positions import pack as lsns
from lakemark.errors import RefusedError

UUID, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "3e11fa47-71ca-11e1-9e33-c80aa9429563"


def committed(server: str = "shop", **offset: object) -> list[dict[str, object]]:
    return [{"partition": {"server": server}, "offset": offset}]


# --- PostgreSQL -------------------------------------------------------------------------------


@given(st.integers(0, (1 << 64) - 1))
def test_an_lsn_is_read_as_it_is_printed(number):
    assert Lsn.parse(Lsn(number).text) == Lsn(number)


def test_an_lsn_is_read_in_either_case_and_with_blanks():
    assert Lsn.parse(" 0/16b3748\n") == Lsn(0x16B3748) == Lsn.parse("0/16B3748")
    assert Lsn.parse("A/1").number == (10 << 32) + 1


@pytest.mark.parametrize("text", ["16B3748", "0/", "0/16B37480000", "0/16B3748;", "0x1/2", "-1/0"])
def test_what_is_no_lsn_is_refused(text):
    with pytest.raises(RefusedError, match="no position") as refused:
        Lsn.parse(text)
    assert "pg_current_wal_lsn" in refused.value.hint


@pytest.mark.parametrize(
    ("offset", "sent"),
    [
        ({"lsn_commit": 100, "lsn": 80}, True),  # a commit that ends there
        ({"lsn_commit": 40, "lsn": 100}, True),  # an event of a transaction that committed behind
        ({"lsn_commit": 99, "lsn": 99}, False),
        ({"lsn_commit": None, "lsn": 100}, True),
        ({"lsn_commit": 100, "lsn": 100, "snapshot": True}, False),
        ({"lsn_commit": "100"}, False),
        ({"lsn": -1}, True),  # a Java long above 2**63
        ({}, False),
    ],
)
def test_what_connect_has_committed_of_postgresql(offset, sent):
    assert Lsn(100).is_sent(committed(**offset), server="shop") is sent


def test_offsets_of_another_prefix_say_nothing():
    assert not Lsn(100).is_sent(committed("old", lsn=500), server="shop")
    assert not BinlogEnd.parse("b.1:4").is_sent(committed("old", file="b.9", pos=9), server="shop")


@pytest.mark.parametrize(
    ("major", "minor", "passed"),
    [(100, 50, True), (50, 100, True), (99, 99, False), (40, 96, False)],
)
def test_an_event_of_postgresql_is_behind_a_place(major, minor, passed):
    assert Lsn(100).is_passed(lsns(0, major, minor)) is passed


# --- MySQL and MariaDB ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "transactions"),
    [
        ("binlog.000003:1234", (3, 1234), {}),
        (f"{UUID}:1-77", None, {UUID: [(1, 77)]}),
        (f"{UUID.upper()}:1-7:9,\n{OTHER}:tag:1-3", None,
         {UUID: [(1, 7), (9, 9)], f"{OTHER}:tag": [(1, 3)]}),
        ("0-101-193,1-7-5", None, {"0": [(0, 193)], "1": [(0, 5)]}),
        (f"b-in.7:4 {UUID}:5", (7, 4), {UUID: [(5, 5)]}),
    ],
)  # fmt: skip
def test_what_mysql_and_mariadb_print_is_read(text, place, transactions):
    found = BinlogEnd.parse(text)
    assert (found.place, found.transactions) == (place, transactions)
    assert BinlogEnd.parse(found.text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("binlog:1234", "binlog.000003", "binlog.000003:-4", "b.1:2 b.1:3", "1-2-3 4-5-6"),
        *(
            f"{UUID}",
            f"{UUID}:",
            f"{UUID}:tag",
            f"{UUID[:-1]}:1",
            "0/16B3748",
            "0-1",
            "b.99999999:4",
        ),
    ],
)
def test_what_is_no_place_of_a_binlog_is_refused(text):
    with pytest.raises(RefusedError, match="no position") as refused:
        BinlogEnd.parse(text)
    assert "gtid_executed" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "offset", "sent"),
    [
        ("b.000003:100", {"file": "b.000003", "pos": 100}, True),
        ("b.000003:100", {"file": "b.000003", "pos": 99}, False),
        ("b.000003:100", {"file": "b.000004", "pos": 4}, True),
        ("b.999999:100", {"file": "b.1000000", "pos": 4}, True),
        ("b.000003:100", {"file": "b.000003", "pos": 100, "snapshot": "INITIAL"}, False),
        ("b.000003:100", {"file": "b.000003"}, False),
        (f"{UUID}:1-77", {"gtids": f"{UUID}:1-77"}, True),
        (f"{UUID}:1-77", {"gtids": f"{UUID}:1-76:78-90"}, False),  # a gap is no answer
        (f"{UUID}:77", {"gtids": f"{OTHER}:1-99"}, False),
        (f"{UUID}:77", {"file": "b.000003", "pos": 100}, False),
        ("0-1-9", {"gtids": "0-2-10"}, True),
        ("0-1-9,1-1-1", {"gtids": "0-2-10"}, False),
        # rotated at rest: the log's head is of no transaction, and the connector stands before it
        (f"b.000004:342 {UUID}:1-7", {"file": "b.000004", "pos": 4, "gtids": f"{UUID}:1-7"}, True),
        (f"b.000004:342 {UUID}:1-7", {"file": "b.000004", "pos": 4, "gtids": f"{UUID}:1-6"}, False),
    ],
)
def test_what_connect_has_committed_of_a_binlog(text, offset, sent):
    assert BinlogEnd.parse(text).is_sent(committed(**offset), server="shop") is sent


def test_an_event_of_a_binlog_is_behind_a_place():
    place = BinlogEnd.parse("b.000003:100")
    assert place.is_passed(binlog(0, 3, 100, 1))
    assert place.is_passed(binlog(0, 4, 4))
    assert not place.is_passed(binlog(0, 3, 99, 7))
    assert not BinlogEnd.parse(f"{UUID}:1").is_passed(binlog(0, 9, 9))


NUMBERS = st.sets(st.integers(1, 12))


def printed(numbers: set[int]) -> str:
    """As MySQL prints them, but for that neighbours may stand alone."""
    return ":".join([UUID, *map(str, sorted(numbers))])


@given(NUMBERS, NUMBERS.filter(bool))
def test_a_set_has_another_one_as_sets_of_numbers_do(numbers, wanted):
    sent = transactions_of(printed(numbers)) or {}
    assert has_all(sent, transactions_of(printed(wanted)) or {}) is (wanted <= numbers)
