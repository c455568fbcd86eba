"""Positions as bytes."""

import json
import struct

import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import positions
from tests.kit.golden import samples


def test_pack_and_unpack():
    assert lsns.unpack(lsns.pack(1, 2, 3)) == (1, 2, 3)
    assert len(lsns.pack(0, 0, 0)) == lsns.WIDTH
    assert lsns.pack(0, 0, 0) == positions.LOWEST
    with pytest.raises(struct.error):
        lsns.pack(-1, 0, 0)


def test_postgres_takes_last_commit_and_own_lsn():
    assert lsns.of_stream('["10","20"]', 20) == (10, 20)
    assert lsns.of_stream('[null,"24"]', None) == (24, 25)
    assert lsns.of_stream('["10",null]', 7) == (10, 7)


@pytest.mark.parametrize(
    "sequence",
    [None, "", "[]", "[null,null]", '["10",null]', '["a","1"]', '["0x10","1"]', '["+1","1"]',
     '["1_0","1"]', '["١","1"]',  # noqa: RUF001 '["1","2","3"]', '["1","2"] ', '["99999999999999999999","1"]',
     '["-9223372036854775809","1"]', "null", '["","1"]'],
)  # fmt: skip
def test_lsn_alone_or_garbage_is_no_position(sequence):
    lsn = None if sequence in {"[null,null]", '["10",null]'} else 20
    assert lsns.of_stream(sequence, lsn) is None
    assert lsns.all_of_stream([sequence], 0) is None


def test_java_longs_above_the_sign_bit():
    assert lsns.of_stream('["-1","-9223372036854775808"]', None) == (2**64 - 1, 2**63)


def test_own_snapshot_has_major_zero():
    assert lsns.own_snapshot('[null,"20"]', 20) == (0, 20)
    assert lsns.own_snapshot(None, 20) == (0, 20)
    assert lsns.own_snapshot(None, None) is None
    assert lsns.own_snapshot(None, 1 << 70) is None
    assert positions.is_own_snapshot(lsns.pack(1, 0, 20))
    assert not positions.is_own_snapshot(lsns.pack(1, 1, 20))


def test_truncate_compares_the_own_snapshot_by_lsn_only():
    truncate = lsns.pack(1, 50, 60)
    assert positions.below_truncate(lsns.pack(1, 0, 59), truncate)
    assert not positions.below_truncate(lsns.pack(1, 0, 61), truncate)
    assert positions.below_truncate(lsns.pack(1, 50, 59), truncate)
    assert not positions.below_truncate(lsns.pack(1, 51, 1), truncate)
    assert positions.below_truncate(lsns.pack(0, 0, 99), truncate)


def test_a_truncate_that_is_the_first_record_after_a_snapshot_comes_after_it():
    """`pg_current_wal_lsn()` is the end of the last record, where the next one begins."""
    truncate = lsns.pack(1, 50, 60)
    assert positions.below_truncate(lsns.pack(1, 0, 60), truncate)


def test_truncate_compares_incremental_reads_by_commit():
    """Its record may be before the close row's, its commit behind: then it came after the read."""
    truncate = lsns.pack(1, 80, 56)
    for own in (48, 72):
        before, behind = lsns.pack(1, 64, own), lsns.pack(1, 96, own)
        assert positions.below_truncate(positions.outside_stream(before), truncate)
        assert not positions.below_truncate(positions.outside_stream(behind), truncate)
    assert positions.below_truncate(positions.outside_stream(lsns.pack(0, 96, 8)), truncate)
    assert not positions.below_truncate(positions.outside_stream(lsns.pack(2, 8, 8)), truncate)


def test_incremental_reads_are_older_than_any_event_and_no_own_snapshot():
    read = positions.outside_stream(lsns.pack(1, 64, 72))
    assert read < lsns.pack(1, 8, 8)
    assert not positions.is_own_snapshot(read)


def test_packed_equals_one_by_one():
    sequences = ['["10","20"]', '["0","0"]', '["999999999999999999","1"]']
    assert lsns.all_of_stream(sequences, 7) == [
        lsns.pack(7, *lsns.of_stream(s, None)) for s in sequences
    ]
    assert lsns.all_of_stream([], 7) == []
    assert lsns.all_of_stream(['["10","20"]', '[null,"20"]'], 7) is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_real_records_of_a_partition_come_in_position_order(wrapped):
    """Stream records of one topic, in offset order."""
    streams: dict[str, list[tuple[int, tuple[int, int]]]] = {}
    for r in samples(wrapped=wrapped).values():
        value = json.loads(r.value) if r.value else {}
        source = value.get("payload", value).get("source")
        if source and source["snapshot"] == "false":
            at = lsns.of_stream(source["sequence"], source["lsn"])
            streams.setdefault(r.topic, []).append((r.offset, at))
    assert len(streams) >= 4
    for found in streams.values():
        in_offset_order = [at for _, at in sorted(found)]
        assert in_offset_order == sorted(in_offset_order)


def test_only_changes_of_one_transaction_are_taken_for_such():
    one, other = lsns.pack(1, 16, 16), lsns.pack(1, 240, 240)
    assert not positions.one_transaction(one, other)  # the second followed the first at once
    assert positions.one_transaction(one, lsns.pack(1, 16, 80))
    assert not positions.one_transaction(one, lsns.pack(2, 16, 80))
    first = [lsns.pack(1, *lsns.of_stream(f'[null,"{n}"]', None)) for n in (16, 240)]
    assert first[0] < first[1]
    assert positions.one_transaction(*first)
    assert not positions.one_transaction(first[0], other)


@pytest.mark.parametrize(
    ("sequence", "shown"), [('["10","20"]', (10, 20)), ('[null,"24"]', (None, 24))]
)
def test_the_sequence_of_a_position_is_the_one_it_was_made_of(sequence, shown):
    assert lsns.sequence_of(lsns.pack(3, *lsns.of_stream(sequence, None))) == shown


def test_a_slots_first_transaction_has_no_last_commit():
    found = [lsns.of_stream(text, None) for text in (
        '["800","808"]', '[null,"1600"]', '["1600","1600"]', '[null,"1608"]')]  # fmt: skip
    own = lsns.pack(0, 0, 1601)
    assert positions.which_first([lsns.pack(0, *at) for at in found] + [own]) == [1, 3]
    assert positions.which_first([]) == []
