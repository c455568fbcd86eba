"""What the positions of every database must keep: a suite that each kind inherits."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from lakemark.model import positions
from lakemark.model.positions import PositionRules


class PositionContract:
    """Subclasses give the kind.

    Attributes:
        connector: `source.connector`.
        blocks: source blocks of events of the stream in the log's order, each with the number of
            its transaction.
    """

    connector: str
    blocks: list[tuple[int, dict[str, Any]]]

    @property
    def rules(self) -> PositionRules:
        return positions.rules_of(self.connector)

    def of(self, blocks: list[dict[str, Any]], epoch: int = 0, own: Any = None) -> list[Any]:
        names = (*self.rules.fields, *self.rules.of_transaction)
        fields = {name: [block.get(name) for block in blocks] for name in names}
        number = positions.epoch_number(self.connector, epoch)
        return self.rules.from_source(fields, own, number)

    @property
    def stream(self) -> list[bytes]:
        return self.of([block for _, block in self.blocks])

    def truncates(self) -> list[bytes]:
        return [at for epoch in (0, 1) for at in self.of([b for _, b in self.blocks], epoch)]

    def rows(self) -> list[bytes]:
        """Positions of rows: events, own snapshots and incremental reads, of two epochs."""
        blocks = [block for _, block in self.blocks]
        found = []
        for epoch in (0, 1):
            events = self.of(blocks, epoch)
            found += [*events, *map(self.rules.outside_stream, events)]
            found += self.of(blocks, epoch, [True] * len(blocks))
        return found

    def test_bytes_are_of_one_width_and_in_the_logs_order(self):
        found = self.stream
        assert {len(at) for at in found} == {self.rules.width}
        assert all(before < after for before, after in pairwise(found))
        assert all(map(positions.is_one, found))
        assert not positions.is_one(found[0][:-1])
        assert max(found) < min(self.of([block for _, block in self.blocks], 1))
        assert min(self.rows()) > positions.LOWEST

    def test_what_was_read_has_a_place_among_the_events(self):
        blocks = [block for _, block in self.blocks]
        own = [self.rules.in_stream(at) for at in self.of(blocks, 2, [True] * len(blocks))]
        events = self.of(blocks, 2)
        read = [self.rules.in_stream(self.rules.outside_stream(at)) for at in events]
        assert [self.rules.in_stream(at) for at in events] == events
        assert read == sorted(read)
        assert {positions.epoch_of(at) for at in own + read} == {positions.epoch_of(events[0])}
        assert all(map(positions.is_of_stream, own + read))

    def test_a_source_block_without_a_position_has_none(self):
        assert self.of([{}, self.blocks[0][1]]) == [None, self.stream[0]]
        assert positions.missing_of(self.connector) == self.rules.missing != ""
        source = self.rules.to_source(self.stream[0], self.blocks[0][1])
        assert {*source} - {*self.rules.of_entries}, "a row has some"

    def test_many_at_once_are_what_each_is(self):
        blocks = [block for _, block in self.blocks] + [{}]
        assert self.of(blocks, 3) == [self.of([block], 3)[0] for block in blocks]
        own = [at % 2 == 0 for at in range(len(blocks))]
        assert self.of(blocks, 3, own) == [
            self.of([block], 3, [is_own])[0] for block, is_own in zip(blocks, own, strict=True)
        ]

    def test_a_position_gives_back_what_it_was_made_of(self):
        for at, (_, block) in zip(self.stream, self.blocks, strict=True):
            within = {name: block.get(name) for name in self.rules.of_transaction}
            source = self.rules.to_source(at, self.blocks[0][1])
            assert self.of([source | within]) == [at]
            numbers = np.array([self.rules.numbers_of(at)], np.int64)
            epoch = positions.epoch_number(self.connector, 0)
            assert self.rules.of_numbers(numbers, epoch).tobytes() == at

    def test_what_is_of_one_transaction(self):
        numbers = np.array([self.rules.numbers_of(at) for at in self.stream], np.int64)
        same = self.rules.transactions(numbers)
        for i, (one, at) in enumerate(zip(self.blocks, self.stream, strict=True)):
            for j, (other, to) in enumerate(zip(self.blocks, self.stream, strict=True)):
                assert positions.one_transaction(at, to) == (one[0] == other[0])
                assert (same[i] == same[j]) == (one[0] == other[0])
        assert not positions.one_transaction(self.stream[0], self.of([self.blocks[0][1]], 1)[0])

    def test_only_events_of_one_place_may_be_counted_anew(self):
        for one in self.stream:
            for other in self.stream:
                if positions.may_be_counted_anew(one, other):
                    numbers = [self.rules.numbers_of(at)[:-1] for at in (one, other)]
                    assert numbers[0] == numbers[1]

    def test_what_was_read_outside_the_stream_is_older_than_any_event_of_its_epoch(self):
        blocks = [block for _, block in self.blocks]
        for epoch in (0, 1):
            oldest = min(self.of(blocks, epoch))
            own = self.of(blocks, epoch, [True] * len(blocks))
            reads = [self.rules.outside_stream(at) for at in self.of(blocks, epoch)]
            assert max(own + reads) < oldest
            assert all(map(positions.is_own_snapshot, own))
            assert not any(map(positions.is_own_snapshot, reads + self.of(blocks, epoch)))
            assert not any(map(positions.is_of_stream, own))
            assert all(map(positions.is_of_stream, self.of(blocks, epoch)))

    def test_snapshots_of_the_connector_are_told_apart(self):
        first, last = self.blocks[0][1], self.blocks[-1][1]
        (one,), (other,) = self.of([first], 0, [True]), self.of([last], 0, [True])
        assert positions.snapshot_of(one) != positions.snapshot_of(other)
        assert positions.taken_before(one, self.stream[-1])
        assert not positions.taken_before(other, self.stream[0])

    def test_a_truncate_removes_what_the_log_has_before_it(self):
        stream = self.stream
        for at, truncate in enumerate(stream):
            assert [positions.below_truncate(row, truncate) for row in stream] == [
                n < at for n in range(len(stream))
            ]

    def test_many_rows_ranges_and_one_row_agree_about_a_truncate(self):
        rows = self.rows()
        for truncate in self.truncates():
            alone = [positions.below_truncate(row, truncate) for row in rows]
            column = pa.chunked_array([pa.array([None, *rows], pa.binary())]).slice(1)
            assert positions.which_below_truncate(column, truncate).tolist() == alone
            ranges = positions.ranges_below_truncate(truncate)
            within = [
                any(
                    (above is None or row > above) and (row < below or (equal and row == below))
                    for above, below, equal in ranges
                )
                for row in rows
            ]
            assert within == alone

    def test_columns_compare_as_bytes_do(self):
        rows, dice = self.rows(), random.Random(0)
        for _ in range(50):
            picked, cut = dice.choices(rows, k=dice.randint(1, 8)), dice.randint(0, 3)
            column = positions.fixed([*rows[:cut], *picked]).slice(cut)
            for bound in (positions.LOWEST, *dice.choices(rows, k=3)):
                assert positions.which_above(column, bound).tolist() == [p > bound for p in picked]
            order = np.lexsort([*reversed(positions.words(column))])
            assert [picked[at] for at in order] == sorted(picked)
