"""One table end to end: any history, any cuts, any crashes, and the table equals the source.

What may differ, because the information exists nowhere in the records:

* a mirror that begins in mid-stream lacks rows that no event names, and of rows it first sees in
  an update or a key change the unchanged TOAST columns: these are listed in `_cdc.unavailable`;
* a row that was deleted while no connector looked stays (its table is `resnapshot-needed`); the
  simulated connector misses only inserts and updates.

Nothing else may: no other row, no other value, no column unavailable that some record held.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.model import net_change, positions
from lakemark.model.decoding import AppliedPosition
from lakemark.sink import key_changes
from lakemark.sink import resolve as resolving
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.source import decoder
from lakemark.source.replay_filter import Gated
from tests.kit.log_model import Database, Shape, shapes
from tests.kit.log_records import Connector
from tests.kit.nightly import NIGHTLY, examples
from tests.kit.table_model import DeltaLake, DictLake, TableTask

EXAMPLES = examples(30, nightly=5000)


def history(seed, shape, *, deletes="hard", start=None, crashes=0.2, lake=None):
    """Runs one history; the database, the lake and the keys that some record named.

    After every batch the table must show, of every key, the newest event read so far.
    """
    dice = random.Random(seed)
    database = Database(shape, dice).run()
    begin = 0 if start is None else int(start * len(database.log))
    topic = Connector(database, dice).run(start=begin)
    lake = lake or DictLake(deletes)
    task = TableTask(topic, lake, dice, deletes=deletes, crashes=crashes)
    follow = start is None and not shape.deferrable
    task.run(check=(lambda: no_going_back(database, task)) if follow else lambda: None)
    return database, lake, {entry.key for entry in database.log[begin:]}


def no_going_back(database, task):
    """No row revived, none back at an older state, while half of the log is still to come.

    A truncate that waits in another partition lets what it removes show until it is read.
    """
    newest, seen = {}, set()
    for records, end in zip(task.topic, task.state.offsets, strict=True):
        for record in records[:end]:
            seen.add(record.entry)
            key = database.log[record.entry].key
            if key is not None:
                newest[key] = max(newest.get(key, -1), record.entry)
    truncates = [at for at, entry in enumerate(database.log) if entry.op == "t"]
    truncated = max(seen.intersection(truncates), default=-1)
    rows = task.lake.rows()
    for key, index in newest.items():
        after = database.log[index].after
        if any(at < index and at not in seen for at in truncates):
            continue
        if after is None or index < truncated:
            assert key not in rows, f"{key} is back"
        else:
            assert rows[key]["a"] == after["a"], f"{key} shows another event than its newest"


def differences(database, lake):
    """What is wrong, and which cells are said to be unknown."""
    wrong, unknown = [], set()
    rows = lake.rows()
    for key in sorted(rows.keys() | database.rows.keys()):
        is_, should = rows.get(key), database.rows.get(key)
        if is_ is None or should is None:
            wrong.append((key, "lost" if is_ is None else "ghost"))
            continue
        absent = set(is_["_cdc"]["unavailable"] or ())
        unknown |= {(key, name) for name in absent}
        wrong += [
            (key, name)
            for name, value in should.items()
            if name not in absent and is_[name] != value
        ]
    return wrong, unknown


_SEEDS = st.integers(0, 2**40)
_SHAPES = shapes(transactions=14, keys=7)
_DELETES = st.sampled_from(["hard", "soft"])
_model = settings(max_examples=EXAMPLES, deadline=None, print_blob=True)


@given(seed=_SEEDS, shape=_SHAPES, deletes=_DELETES)
@_model
def test_the_table_equals_the_source(seed, shape, deletes):
    database, lake, _ = history(seed, shape, deletes=deletes)
    assert differences(database, lake) == ([], set())


@given(seed=_SEEDS, shape=_SHAPES, deletes=_DELETES)
@_model
def test_rows_that_share_a_key_for_a_while_are_told_apart(seed, shape, deletes):
    """Deferrable keys: shifts, swaps, collisions, cut anywhere."""
    shape = replace(shape, full=True, deferrable=True)
    database, lake, _ = history(seed, shape, deletes=deletes)
    assert differences(database, lake) == ([], set())


def test_a_delete_of_the_displaced_row_that_begins_a_stretch():
    """Its create stands in an earlier batch; the update after it shows that a row was left."""
    shape = Shape(partitions=3, wrapped=True, full=True, deferrable=True, transactions=7, keys=3)
    database, lake, _ = history(7, shape)
    assert differences(database, lake) == ([], set())


@given(seed=_SEEDS, shape=_SHAPES)
@_model
def test_key_changes_without_anything_else(seed, shape):
    shape = replace(shape, full=False, truncates=False, reads=False, snapshots=False, keys=4)
    database, lake, _ = history(seed, shape)
    assert differences(database, lake) == ([], set())


@given(seed=_SEEDS, shape=_SHAPES, start=st.floats(0.1, 0.9))
@_model
def test_a_mirror_from_mid_stream_is_never_wrong(seed, shape, start):
    database, lake, named = history(seed, replace(shape, snapshots=False), start=start)
    wrong, _ = differences(database, lake)
    assert [one for one in wrong if one[1] != "lost" or one[0] in named] == []


@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 6))
@pytest.mark.parametrize("engine", [TASK_MERGE, DELETION_VECTORS])
@pytest.mark.sampled(6)
def test_the_real_engine_keeps_the_contract(seed, deletes, engine, tmp_path):
    shape = Shape(partitions=2, transactions=6, keys=5, full=bool(seed % 2))
    lake = DeltaLake(str(tmp_path / "things"), deletes, engine)
    database, lake, _ = history(seed, shape, deletes=deletes, lake=lake)
    assert differences(database, lake) == ([], set())


# -- the tests have teeth --------------------------------------------------------------------------


def _no_gate(monkeypatch):
    def gate(kinds, position, source_ts, start, logged):
        keep = [i for i, kind in enumerate(kinds) if kind in {0, 1, 2, 3}]
        return Gated(
            keep, 0, None, AppliedPosition(max([start.position, *position]), start.source_ts)
        )

    monkeypatch.setattr(decoder, "drop_replays", gate)


def _truncates_gated(monkeypatch):
    """As if a truncate were an event like others: below the applied position it is dropped."""
    old = decoder.drop_replays

    def gate(kinds, position, source_ts, start, logged):
        found, high, keep = old(kinds, position, source_ts, start, logged), start.position, []
        for index in found.keep:
            if kinds[index] == 3 and position[index] < high:
                continue
            high = position[index] if kinds[index] == 1 else max(high, position[index])
            keep.append(index)
        return replace(found, keep=keep)

    monkeypatch.setattr(decoder, "drop_replays", gate)


def _no_truncate_kept(monkeypatch):
    monkeypatch.setattr(key_changes, "below", lambda position, truncated_at: False)
    monkeypatch.setattr(resolving, "below", lambda position, truncated_at: False)


def _no_carried_columns(monkeypatch):
    monkeypatch.setattr(key_changes.PendingKeyChanges, "_filled", lambda self, key, row: row)


def _no_late_columns(monkeypatch):
    monkeypatch.setattr(key_changes.PendingKeyChanges, "load", lambda self, pending, offset: None)


def _no_shift_rule(monkeypatch):
    def leave(state, gone, same):
        row = state.row if state.row and state.row.action != net_change.DELETE else None
        return net_change.RowState(net_change.compose(state.row, gone)), row

    monkeypatch.setattr(net_change, "_leave", leave)


def _shifts_everywhere(monkeypatch):
    """Chains taken for shifts: a delete spares any row that arrived in its transaction."""
    old = net_change._leave

    def leave(state, gone, same):
        row = state.row
        arrived = row is not None and row.op == "c" and state.displaced is None
        if arrived and positions.one_transaction(row.position, gone.position):
            return net_change.RowState(row), None
        return old(state, gone, same)

    monkeypatch.setattr(net_change, "_leave", leave)


def _fills_any_incarnation(monkeypatch):
    old = key_changes.PendingKeyChanges._filled

    def filled(self, key, row):
        if row is not None and row.unavailable and row.barrier is not None:
            found = [p for k, p in self.moved if k == key]
            row = replace(row, barrier=found[0]) if found else row
        return old(self, key, row)

    monkeypatch.setattr(key_changes.PendingKeyChanges, "_filled", filled)


def _arrivals_come_twice(monkeypatch):
    old = net_change.apply_step

    def advance(state, step, *, same):
        row = state.row
        if isinstance(step, net_change.KeyArrived) and row and row.position == step.net.position:
            return net_change.RowState(net_change.compose(row, step.net)), None
        return old(state, step, same=same)

    monkeypatch.setattr(net_change, "apply_step", advance)


def _placeholders_are_values(monkeypatch):
    old = net_change.upsert

    def upsert(**event):
        return old(**{**event, "unavailable": frozenset()})

    monkeypatch.setattr(net_change, "upsert", upsert)


def _settled_too_early(monkeypatch):
    old = TableTask._settled
    monkeypatch.setattr(TableTask, "_settled", lambda self: b"\xff" * 20 if old(self) else None)


_PLAIN = Shape(transactions=10, keys=5)
_DEFERRABLE = replace(_PLAIN, full=True, deferrable=True)
_MOVES = replace(_PLAIN, truncates=False, snapshots=False, reads=False, keys=4, partitions=3)
_MUTANTS = {
    "no replay gate": (_no_gate, _PLAIN),
    "truncates dropped as replays": (_truncates_gated, _PLAIN),
    "truncate forgotten": (
        _no_truncate_kept,
        replace(_PLAIN, full=True, snapshots=False, reads=False),
    ),
    "no columns from the old key": (_no_carried_columns, _MOVES),
    "no columns from later batches": (_no_late_columns, _MOVES),
    "no deferred shift": (_no_shift_rule, _DEFERRABLE),
    "every chain a shift": (_shifts_everywhere, _MOVES),
    "columns of another incarnation": (_fills_any_incarnation, _MOVES),
    "a create that comes again counts": (
        _arrivals_come_twice,
        replace(_MOVES, partitions=1, transactions=3, keys=5),
    ),
    "placeholders as values": (_placeholders_are_values, _PLAIN),
    "halves forgotten too early": (_settled_too_early, _MOVES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    """Each rule switched off must show within 400 histories."""
    mutate, shape = _MUTANTS[name]
    mutate(monkeypatch)
    for seed in range(400):
        try:
            database, lake, _ = history(seed, shape)
        except AssertionError:
            return
        if differences(database, lake) != ([], set()):
            return
    pytest.fail(f"{name}: nobody noticed")
