"""Whose log a server has: by what begins there at the place that the connector has reached."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.binlog_place import LogEntry, may_stand, newest_of
from lakemark.connectors.mysql.positions import POSITIONS, begun_place, pack, place_of
from lakemark.connectors.reached_place import ReachedPlace

SERVER, OTHER = "33cc7b62-eb8a-11f1-9a9d-02fc00000001", "43cc7b62-eb8a-11f1-9a9d-02fc00000001"
AT = pack(0, 7, 500)


@pytest.mark.parametrize(
    ("kind", "text", "transactions", "own"),
    [
        ("Gtid", "BEGIN GTID 0-101-193", {"0": 193}, True),
        ("Gtid", "GTID 0-101-193 cid=77", {"0": 193}, True),
        ("Gtid", "XA START X'61',X'',1 GTID 0-101-193", {"0": 193}, True),
        ("Gtid", "BEGIN GTID 0-101-192", {"0": 193}, False),
        ("Gtid", "BEGIN GTID 0-101-194", {"0": 193}, False),
        ("Gtid", "BEGIN GTID 2-101-193", {"0": 193}, False),
        ("Gtid", "BEGIN GTID 2-102-8", {"0": 193, "2": 8}, True),
        ("Gtid", f"SET @@SESSION.GTID_NEXT= '{SERVER}:23'", {SERVER: 23}, True),
        ("Gtid", f"SET @@SESSION.GTID_NEXT= '{OTHER}:23'", {SERVER: 23}, False),
        ("Gtid", f"SET @@SESSION.GTID_NEXT= '{SERVER}:a:2'", {f"{SERVER}:a": 2}, True),
        ("Gtid", f"SET @@SESSION.GTID_NEXT= '{SERVER}:24'", {SERVER: 23}, False),
        ("Write_rows_v1", "table_id: 20 flags: STMT_END_F", {"0": 193}, True),
        ("Query", "use `shop`; TRUNCATE t /* GTID 0-1-5 */", {"0": 193}, True),
        ("", "", {"0": 193}, False),
    ],
)
def test_the_newest_event_stands_at_its_place_in_its_transaction(kind, text, transactions, own):
    entries = [LogEntry(kind, text)] if kind else []
    assert may_stand(entries, ReachedPlace(AT, transactions)) is own


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [LogEntry("Gtid", "BEGIN GTID 0-101-194")],
        [LogEntry("Binlog_checkpoint", "binlog.000001"), LogEntry("Gtid", "GTID 0-101-1")],
    ],
)
def test_what_was_committed_may_be_a_place_before_the_newest_transaction(entries):
    """A connector that begins by its transactions commits the head of the file for a while."""
    assert may_stand(entries, ReachedPlace(AT, {"0": 193}, is_between=True))


def test_where_the_connector_began_anything_may_begin_or_nothing():
    assert may_stand([], ReachedPlace(begun_at=1))
    assert may_stand([LogEntry("Gtid", "BEGIN GTID 0-101-194")], ReachedPlace(begun_at=1))


@pytest.mark.parametrize(
    ("following", "own"), [(194, True), (199, True), (193, False), (12, False)]
)
@pytest.mark.parametrize(
    "here", [LogEntry("Update_rows", "table_id: 9"), LogEntry("Gtid", "BEGIN GTID 0-101-193")]
)
def test_what_follows_is_newer_in_the_same_log(here, following, own):
    """An entry may stand at the place by chance, with older transactions behind it."""
    others = [LogEntry("Xid", "COMMIT"), LogEntry("Gtid", "BEGIN GTID 5-101-2")]
    entries = [here, *others, LogEntry("Gtid", f"BEGIN GTID 0-101-{following}")]
    assert may_stand(entries, ReachedPlace(AT, {"0": 193})) is own


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 19))
def test_a_replica_with_its_transactions_at_higher_places_is_told_wherever_entries_meet(
    newest, behind, read
):
    """Of each place that both logs have; the replica has older transactions there."""

    def log(first):
        for number in range(first, first + 8):
            yield LogEntry("Gtid", f"SET @@SESSION.GTID_NEXT= '{SERVER}:{number}'")
            yield from (LogEntry("Table_map", ""), LogEntry("Write_rows", ""), LogEntry("Xid", ""))

    reached = ReachedPlace(AT, {SERVER: newest + behind})
    assert may_stand([*log(newest + behind)][2 : read + 3], reached)
    theirs = [*log(newest)][2:]
    assert not may_stand(theirs[:20], reached)


FILES, PLACES = st.integers(0, (1 << 23) - 1), st.integers(0, (1 << 40) - 1)


@given(FILES, PLACES, st.integers(0, 9))
def test_a_position_has_the_place_of_its_event_or_at_which_was_read(file, pos, order):
    event = pack(3, file, pos, order)
    assert place_of(event) == (file, pos)
    assert place_of(POSITIONS.outside_stream(event)) == (file, pos)
    blocks = {"file": [f"binlog.{file:06d}"], "pos": [pos], "total_order": [None]}
    (own,) = POSITIONS.from_source(blocks, [True], 3)
    assert place_of(own) == (file, pos)
    number = POSITIONS.snapshot_of(own)
    assert begun_place(number) == ((file, pos) if number else None)


NUMBERS = st.integers(1, 2**63 - 2)


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.lists(NUMBERS, min_size=1, max_size=3)))
def test_of_each_domain_the_newest_counts(numbers):
    gtids = ",".join(f"{domain}-101-{n}" for domain, each in numbers.items() for n in each)
    assert newest_of(gtids) == {str(domain): max(each) for domain, each in numbers.items()}


@given(st.dictionaries(st.sampled_from(["", ":tag_a", ":b"]), st.lists(NUMBERS, min_size=2)))
def test_of_each_server_and_tag_the_newest_counts(numbers):
    text = ":".join(
        f"{tag}:{':'.join(f'{min(pair)}-{max(pair)}' for pair in pairwise(each))}"
        if tag
        else ":".join(map(str, each))
        for tag, each in sorted((tag[1:], each) for tag, each in numbers.items())
    )
    gtids = f"{OTHER}:9,\n{SERVER}:{text}" if text else f"{OTHER}:9"
    assert newest_of(gtids) == {
        OTHER: 9,
        **{f"{SERVER}{tag}": max(each) for tag, each in numbers.items()},
    }


@pytest.mark.parametrize("gtids", ["", "odd", "0-1", "0-x-y", "uuid", ","])
def test_what_nobody_understands_has_none(gtids):
    assert newest_of(gtids) == {}
