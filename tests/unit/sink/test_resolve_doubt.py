"""Rows that may be another's, or that miss an event: what is known of them gives nothing away."""

import json
from dataclasses import replace

import pytest

from lakemark.model import change_batch
from lakemark.model.decoding import AppliedPosition, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.resolve import Part, resolve
from lakemark.source import decoder
from tests.kit.log_model import TABLE, Entry, table_schema
from tests.kit.table_model import DictLake
from tests.unit.sink.test_resolve import at, process, records, row

PLACEHOLDER = "__debezium_unavailable_value"
PLAN = StretchPlan(
    SourceIdentity("postgresql", "shop"),
    HandlingModes(),
    schemas={TABLE: table_schema()},
    verified=frozenset({TABLE}),
)


class Table:
    """A table and what waits beside it; `batch` is one batch of one partition."""

    def __init__(self, *entries):
        self.lake = DictLake()
        self.pending, self.number, self.reached = None, 0, AppliedPosition()
        if entries:
            self.batch(*entries)

    def batch(self, *entries, stale=frozenset()):
        """The keys to be read again."""
        done = process(*entries, start=self.reached)
        return self.apply(done, stale)

    def apply(self, done, stale=frozenset()):
        self.number, self.reached = self.number + 1, done.applied_position
        found = [Part("0", n, packet) for n, (_, packet) in enumerate(done.packets)]
        result = resolve(
            found, truncated_at=None, pending=self.pending, read_rows=self.lake.read_rows,
            deletes="hard", stale=stale,
        )  # fmt: skip
        self.pending = result.pending
        self.lake.merge(result.write_set, version=self.number)
        reports = {key.encode() for report in done.tables.values() for key in report.reread}
        return result.reread | reports

    def value(self, key):
        """Column b, and the columns that are not known."""
        found = self.lake.table[key]
        return found["b"], found["_cdc"]["unavailable"]


def moved(major, old, new, b=PLACEHOLDER, *, before=None, minor=1):
    return (
        Entry("d", (major, minor), 1, key=old, before=before, new_key=new),
        Entry("c", (major, minor), 1, key=new, after=row(new, 1, b), old_key=old),
    )


# -- rows that miss an event -------------------------------------------------------------------


def unreadable(*entries):
    """As `decode_range`, the first event's value cannot be decoded."""
    given = records(*entries)
    event = json.loads(given.values[0])
    event["after"]["a"] = "no number"
    given.values[0] = json.dumps(event).encode()
    return given


def test_a_row_that_misses_an_event_has_nothing_to_give_to_the_key_it_moves_to():
    table = Table(Entry("c", (1, 1), 1, 1, after=row(1, 1, "stale")))
    update = Entry("u", (2, 1), 1, 1, after=row(1, 1, "new"))
    again = table.apply(decoder.decode_range(unreadable(update, *moved(3, 1, 2)), PLAN))
    assert again == {b"[1]", b"[2]"}
    assert table.value(2) == (None, ["b"])


@pytest.mark.parametrize("stale", [frozenset({b"[1]"}), None])
@pytest.mark.parametrize("together", [True, False])
def test_as_long_as_it_has_not_been_read_again(stale, together):
    table = Table(Entry("c", (1, 1), 1, 1, after=row(1, 1, "stale")))
    leave, arrive = moved(3, 1, 2)
    if together:
        again = table.batch(leave, arrive, stale=stale)
    else:  # in batches of their own, and the old key is read again in between
        table.batch(leave, stale=stale)
        again = table.batch(arrive)
    assert again == {b"[2]"}
    assert table.value(2) == (None, ["b"])


def test_a_row_that_misses_nothing_gives_what_it_has():
    table = Table(Entry("c", (1, 1), 1, 1, after=row(1, 1, "right")))
    assert table.batch(*moved(3, 1, 2), stale=frozenset({b"[7]"})) == set()
    assert table.value(2) == ("right", None)


def test_what_cannot_be_read_at_all_has_its_key_read_again():
    given = records(Entry("c", (1, 1), 1, 1, after=row(1, 1, "x" * 2000)))
    done = decoder.decode_range(given, replace(PLAN, max_event_bytes=1000))
    assert [letter.reason for letter in done.dead] == ["record-too-large"]
    assert done.tables[TABLE].reread == ["[1]"]
    (packet,) = [packet for _, packet in done.packets]
    assert packet.column("record").to_pylist() == [change_batch.MISSED]
    elsewhere = replace(given, topic="routed.by.a.transformation")
    assert not decoder.decode_range(elsewhere, replace(PLAN, max_event_bytes=1000)).tables


# -- two rows with one key, under a deferrable constraint --------------------------------------


def test_a_delete_in_a_later_batch_than_the_row_that_took_its_key():
    """The table has never had the row that key 1 displaced: nothing tells which one is deleted."""
    table = Table()
    assert table.batch(*moved(100, 1, 2, "a", before=row(1, 1, "a"))) == set()
    gone = Entry("d", (100, 3), 1, key=2, before=row(2, 1, "z"))
    assert table.batch(gone) == {b"[2]"}


def test_an_insert_that_took_a_key_before_the_delete_of_the_row_that_had_it():
    table = Table(Entry("c", (1, 1), 1, 1, after=row(1, 1, "old")))
    assert table.batch(Entry("c", (5, 1), 1, 1, after=row(1, 2, "new"))) == set()
    gone = Entry("d", (5, 2), 1, key=1, before=row(1, 1, "old"))
    assert table.batch(gone) == {b"[1]"}


def shift(first, last, *, before, after):
    """`id = id + 1` in one statement, from the first key to the last."""
    return [
        half
        for minor, key in enumerate(range(first, last + 1), 1)
        for half in (
            Entry("d", (100, minor), 1, key=key, before=before(key), new_key=key + 1),
            Entry("c", (100, minor), 1, key=key + 1, after=after(key), old_key=key),
        )
    ]


@pytest.mark.parametrize("others", ["in the batch", "none"])
def test_a_row_of_nulls_that_the_table_lacks_is_told_from_a_key_alone(others):
    """Key 2 is taken by the row of key 1 before its own row, all nulls, leaves for key 3."""
    values = {1: ("a" if others == "in the batch" else None), 2: None}
    halves = shift(
        1, 2,
        before=lambda key: row(key, None, values[key]),
        after=lambda key: row(key + 1, None, values[key]),
    )  # fmt: skip
    assert b"[2]" in Table().batch(*halves)


def test_a_transaction_of_deletes_alone_asks_for_nothing():
    table = Table(*(Entry("c", (n, 1), 1, n, after=row(n, 1, "a")) for n in range(1, 7)))
    deletes = [Entry("d", (50, n), 1, key=n, before=row(n, 1, "a")) for n in range(1, 7)]
    assert table.batch(*deletes[:3]) == set()
    assert table.batch(*deletes[3:]) == set()
    assert table.lake.table == {}


def test_without_whole_before_images_no_key_has_two_rows():
    """PostgreSQL refuses updates of published tables with a deferrable key without them."""
    table = Table(Entry("c", (1, 1), 1, 1, after=row(1, 1, "a")))
    assert table.batch(*moved(100, 1, 2), *moved(100, 2, 3, minor=2)) == set()
    table.batch(Entry("c", (200, 1), 1, 5, after=row(5, 1, "a")))
    assert table.batch(Entry("d", (200, 2), 1, key=5, before=row(5))) == set()
    assert set(table.lake.table) == {3}


@pytest.mark.parametrize("leaves", ["for a row with values", "for good"])
def test_a_row_of_nulls_that_should_be_gone_is_not_what_a_key_alone_means(leaves):
    """Key 1 has a row that a truncate in another partition removes, which is still on its way."""
    table = Table(
        Entry("c", (1, 1), 1, 1, after=row(1, None, None)),
        Entry("c", (50, 1), 1, 3, after=row(3, 1, "a")),
    )
    second = moved(100, 1, 3, "b", minor=2)
    if leaves == "for good":
        second = (Entry("d", (100, 2), 1, key=1, before=row(1)),)
    assert table.batch(*moved(100, 3, 1, "a"), *second) >= {b"[1]"}
    assert set(table.lake.table) == ({3} if len(second) == 2 else set())


def test_the_same_key_in_the_next_transaction_is_a_delete_like_any():
    table = Table(Entry("c", (100, 1), 1, 1, after=row(1, 1, "a")))
    assert table.batch(Entry("d", (101, 1), 1, key=1, before=row(1, 1, "a"))) == set()
    assert at(100) < at(101)
    assert table.lake.table == {}


def test_a_chain_whose_beginning_is_below_a_truncate_is_read_again():
    """1 -> 2 -> 3, of which the first half would be dropped: nothing else gives the column."""
    table = Table()
    arrive = moved(100, 1, 2)[1]
    assert table.batch(arrive, *moved(110, 2, 3)) == set()
    assert table.value(3) == (None, ["b"])
    assert table.batch(Entry("t", (105, 1), 1)) == {b"[3]"}
