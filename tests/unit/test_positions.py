"""Positions as bytes."""

import json
import struct

import pytest

from lakemark.model import positions
from tests.kit.golden import samples


def test_pack_and_unpack():
    assert positions.unpack(positions.pack(1, 2, 3)) == (1, 2, 3)
    assert len(positions.pack(0, 0, 0)) == positions.WIDTH
    assert positions.pack(0, 0, 0) == positions.LOWEST
    with pytest.raises(struct.error):
        positions.pack(-1, 0, 0)


def test_postgres_takes_last_commit_and_own_lsn():
    assert positions.postgres('["10","20"]', 20) == (10, 20)
    assert positions.postgres('[null,"24"]', None) == (24, 25)
    assert positions.postgres('["10",null]', 7) == (10, 7)


@pytest.mark.parametrize(
    "sequence",
    [None, "", "[]", "[null,null]", '["10",null]', '["a","1"]', '["0x10","1"]', '["+1","1"]',
     '["1_0","1"]', '["١","1"]',  # noqa: RUF001 '["1","2","3"]', '["1","2"] ', '["99999999999999999999","1"]',
     '["-9223372036854775809","1"]', "null", '["","1"]'],
)  # fmt: skip
def test_lsn_alone_or_garbage_is_no_position(sequence):
    lsn = None if sequence in {"[null,null]", '["10",null]'} else 20
    assert positions.postgres(sequence, lsn) is None
    assert positions.postgres_packed([sequence], 0) is None


def test_java_longs_above_the_sign_bit():
    assert positions.postgres('["-1","-9223372036854775808"]', None) == (2**64 - 1, 2**63)


def test_own_snapshot_has_major_zero():
    assert positions.postgres_own_snapshot('[null,"20"]', 20) == (0, 20)
    assert positions.postgres_own_snapshot(None, 20) == (0, 20)
    assert positions.postgres_own_snapshot(None, None) is None
    assert positions.postgres_own_snapshot(None, 1 << 70) is None
    assert positions.is_own_snapshot(positions.pack(1, 0, 20))
    assert not positions.is_own_snapshot(positions.pack(1, 1, 20))


def test_truncate_compares_the_own_snapshot_by_lsn_only():
    truncate = positions.pack(1, 50, 60)
    assert positions.below_truncate(positions.pack(1, 0, 59), truncate)
    assert not positions.below_truncate(positions.pack(1, 0, 61), truncate)
    assert positions.below_truncate(positions.pack(1, 50, 59), truncate)
    assert not positions.below_truncate(positions.pack(1, 51, 1), truncate)
    assert positions.below_truncate(positions.pack(0, 0, 99), truncate)


def test_a_truncate_that_is_the_first_record_after_a_snapshot_comes_after_it():
    """`pg_current_wal_lsn()` is the end of the last record, where the next one begins."""
    truncate = positions.pack(1, 50, 60)
    assert positions.below_truncate(positions.pack(1, 0, 60), truncate)


def test_truncate_compares_incremental_reads_by_commit():
    """Its record may be before the close row's, its commit behind: then it came after the read."""
    truncate = positions.pack(1, 80, 56)
    for own in (48, 72):
        before, behind = positions.pack(1, 64, own), positions.pack(1, 96, own)
        assert positions.below_truncate(positions.outside_stream(before), truncate)
        assert not positions.below_truncate(positions.outside_stream(behind), truncate)
    assert positions.below_truncate(positions.outside_stream(positions.pack(0, 96, 8)), truncate)
    assert not positions.below_truncate(positions.outside_stream(positions.pack(2, 8, 8)), truncate)


def test_incremental_reads_are_older_than_any_event_and_no_own_snapshot():
    read = positions.outside_stream(positions.pack(1, 64, 72))
    assert read < positions.pack(1, 8, 8)
    assert not positions.is_own_snapshot(read)


def test_packed_equals_one_by_one():
    sequences = ['["10","20"]', '["0","0"]', '["999999999999999999","1"]']
    assert positions.postgres_packed(sequences, 7) == [
        positions.pack(7, *positions.postgres(s, None)) for s in sequences
    ]
    assert positions.postgres_packed([], 7) == []
    assert positions.postgres_packed(['["10","20"]', '[null,"20"]'], 7) is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_real_records_of_a_partition_come_in_position_order(wrapped):
    """Stream records of one topic, in offset order."""
    streams: dict[str, list[tuple[int, tuple[int, int]]]] = {}
    for r in samples(wrapped=wrapped).values():
        value = json.loads(r.value) if r.value else {}
        source = value.get("payload", value).get("source")
        if source and source["snapshot"] == "false":
            at = positions.postgres(source["sequence"], source["lsn"])
            streams.setdefault(r.topic, []).append((r.offset, at))
    assert len(streams) >= 4
    for found in streams.values():
        in_offset_order = [at for _, at in sorted(found)]
        assert in_offset_order == sorted(in_offset_order)


def test_only_changes_of_one_transaction_are_taken_for_such():
    one, other = positions.pack(1, 16, 16), positions.pack(1, 240, 240)
    assert not positions.one_transaction(one, other)  # the second followed the first at once
    assert positions.one_transaction(one, positions.pack(1, 16, 80))
    assert not positions.one_transaction(one, positions.pack(2, 16, 80))
    first = [positions.pack(1, *positions.postgres(f'[null,"{n}"]', None)) for n in (16, 240)]
    assert first[0] < first[1]
    assert positions.one_transaction(*first)
    assert not positions.one_transaction(first[0], other)


@pytest.mark.parametrize(
    ("sequence", "shown"), [('["10","20"]', (10, 20)), ('[null,"24"]', (None, 24))]
)
def test_the_sequence_of_a_position_is_the_one_it_was_made_of(sequence, shown):
    assert positions.sequence_of(positions.pack(3, *positions.postgres(sequence, None))) == shown


def test_a_slots_first_transaction_has_no_last_commit():
    found = [positions.postgres(text, None) for text in (
        '["800","808"]', '[null,"1600"]', '["1600","1600"]', '[null,"1608"]')]  # fmt: skip
    own = positions.pack(0, 0, 1601)
    assert positions.which_first([positions.pack(0, *at) for at in found] + [own]) == [1, 3]
    assert positions.which_first([]) == []
