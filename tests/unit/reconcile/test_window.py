"""What a shard remembers of the log, and when it forgets."""

import json
from contextlib import suppress

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import StateVersionError
from lakemark.model import positions
from lakemark.model.control import ORDER_MODE, TABLE_MODE, converted
from lakemark.reconcile import state, window
from lakemark.reconcile.state import ArmedRun, ShardState, Window, decode_state, encode_state
from lakemark.source import changed_keys
from lakemark.source.changed_keys import ShardMark
from tests.kit.nightly import examples

A, B = "public.a", "public.b"


def at(n: int) -> bytes:
    return lsns.pack(1, n, n)


def log(*events: tuple) -> bytes:
    """Touches: (table, key, op, n)."""
    columns = [
        pa.array([t for t, *_ in events]).dictionary_encode(),
        pa.array([k for _, k, *_ in events], pa.binary()),
        pa.array([at(n) for *_, n in events], pa.binary(lsns.WIDTH)),
        pa.array([op != "u" for _, _, op, _ in events]),
    ]
    return changed_keys.encode_touches(
        pa.RecordBatch.from_arrays(columns, schema=changed_keys.touches(pa.binary(lsns.WIDTH)))
    )


def marks(*found: ShardMark) -> bytes:
    return msgspec.msgpack.encode(list(found))


def start(run: str = "r1", *tables: str) -> bytes:
    return json.dumps({"type": "run-start", "run": run, "tables": tables or [A]}).encode()


def end(run: str = "r1") -> bytes:
    return json.dumps({"type": "run-end", "run": run}).encode()


def row(uuid: str, kind: str, n: int, *, oldest: str = "", run: str = "r1") -> ShardMark:
    data = json.dumps({"run": run, "oldest": oldest, "server": "s"})
    image = {"id": f"{uuid}-{kind}", "type": f"snapshot-window-{kind}", "data": data}
    return ShardMark(changed_keys.WINDOW, "public.dbz_signal", at(n), json.dumps(image).encode())


class Shard:
    """Folds batches one after the other."""

    def __init__(self):
        self.state = None
        self.outputs = []

    def batch(self, *, control=(), log=(), marks=()) -> bool:
        records = {
            window.CONTROL: control,
            window.TOUCHES: log,
            window.MARKS: marks,
        }
        first, again = (window.fold(self.state, records, shard=0) for _ in "12")
        assert first == again
        self.outputs += [out for out in first.outputs if out.kind != window.SIZE]
        if first.state is None:
            return False
        self.state = first.state
        return True

    def touches(self) -> dict:
        rows = window.touched(self.state).to_pylist()
        found = {(r["table"], r["key"]): (r["position"], r["barrier"]) for r in rows}
        assert len(found) == len(rows)
        return found

    @property
    def now(self) -> ShardState:
        return decode_state(self.state)


def test_without_a_run_nothing_is_remembered_or_written():
    shard = Shard()
    assert not shard.batch(log=[log((A, b"[1]", "u", 5))], marks=[marks(row("w", "open", 1))])
    assert not shard.batch(control=[end(), b"{]", b"[]", b'{"type":"table-pause","table":"x"}'])
    assert shard.state is None
    assert shard.touches() == {}
    quiet = {window.TOUCHES: [log((A, b"[1]", "u", 5))]}
    assert window.fold(None, quiet, shard=0) == window.ShardOutcome(None, [])


def test_an_armed_run_remembers_its_tables_from_the_batch_that_arms_it():
    shard = Shard()
    assert shard.batch(control=[start()], log=[log((A, b"[1]", "u", 5), (B, b"[1]", "u", 6))])
    assert shard.touches() == {(A, b"[1]"): (at(5), positions.LOWEST)}
    assert not shard.batch(log=[log((B, b"[1]", "u", 7))])
    assert not shard.batch()


def test_touches_keep_the_newest_position_and_the_newest_barrier():
    shard = Shard()
    shard.batch(control=[start()], log=[log((A, b"[1]", "c", 5), (A, b"[2]", "d", 6))])
    shard.batch(log=[log((A, b"[1]", "u", 9), (A, b"[2]", "u", 4))])
    assert shard.touches() == {
        (A, b"[1]"): (at(9), at(5)),
        (A, b"[2]"): (at(6), at(6)),
    }
    shard.batch(log=[log((A, b"[2]", "c", 8))])
    assert shard.touches()[A, b"[2]"] == (at(8), at(8))


def test_late_touches_of_lower_positions_do_not_go_back():
    shard = Shard()
    shard.batch(control=[start()], log=[log((A, b"[1]", "c", 3), (A, b"[1]", "u", 10))])
    shard.batch(log=[log((A, b"[1]", "d", 8))])
    assert shard.touches()[A, b"[1]"] == (at(10), at(8))


def test_the_end_of_the_last_run_leaves_one_position():
    shard = Shard()
    shard.batch(
        control=[start()], log=[log((A, b"[1]", "u", 5))], marks=[marks(row("w", "open", 7))]
    )
    assert shard.batch(control=[end()])
    assert shard.now == ShardState(forgotten_below=at(7))
    assert not shard.batch(log=[log((A, b"[1]", "u", 9))])


def test_runs_share_tables_by_count():
    shard = Shard()
    shard.batch(control=[start("r1", A, B), start("r2", A)])
    shard.batch(log=[log((A, b"[1]", "u", 5), (B, b"[1]", "u", 5))])
    shard.batch(control=[end("r1")])
    assert set(shard.touches()) == {(A, b"[1]")}
    shard.batch(control=[end("r2"), start("r3", B)])
    assert shard.touches() == {}
    assert shard.now.tables() == {B}


def test_a_repeated_run_start_changes_nothing():
    shard = Shard()
    shard.batch(control=[start()])
    assert not shard.batch(control=[start()])


def test_windows_by_id_of_armed_runs_only():
    shard = Shard()
    debezium = {"openWindowTimestamp": "x", "correlationId": "y", "dataCollectionId": A}
    foreign = json.dumps(
        {"id": "f-open", "type": "snapshot-window-open", "data": json.dumps(debezium)}
    )
    shard.batch(
        control=[start()],
        marks=[
            marks(
                row("w1", "open", 10),
                row("w1", "close", 12),
                row("w2", "open", 12),
                row("other", "open", 5, run="r9"),
                ShardMark(changed_keys.WINDOW, "s", at(6), foreign.encode()),
                ShardMark(changed_keys.WINDOW, "s", at(6), b"{]"),
            )
        ],
    )
    assert {u: (w.open, w.close) for u, w in shard.now.windows.items()} == {
        "w1": (at(10), at(12)),
        "w2": (at(12), b""),
    }
    assert not shard.batch(marks=[marks(row("w1", "open", 10))])  # a connector restart repeats it


def test_the_first_rows_of_a_window_count_and_those_of_forgotten_ones_do_not():
    """A connector that begins anew may write them again, at the same positions or later ones."""
    shard = Shard()
    shard.batch(control=[start()], marks=[marks(row("w1", "open", 10), row("w1", "close", 12))])
    shard.batch(marks=[marks(row("w1", "open", 14), row("w1", "close", 16))])
    assert (shard.now.windows["w1"].open, shard.now.windows["w1"].close) == (at(10), at(12))
    shard.batch(marks=[marks(row("w2", "open", 20))])
    shard.batch(marks=[marks(row("w3", "open", 30, oldest="w2"))])
    assert shard.now.forgotten_below == at(20)
    shard.batch(marks=[marks(row("late", "open", 19), row("here", "open", 20))])
    assert set(shard.now.windows) == {"w2", "w3", "here"}


@pytest.mark.parametrize(
    ("uuid", "kind", "end"),
    [("w1", "snapshot-window-open", "-close"), ("", "snapshot-window-open", "-open"),
     ("w1", "something", "-open"), ("w1", "snapshot-window-open", "")],
)  # fmt: skip
def test_rows_of_the_signal_table_that_are_no_windows(uuid, kind, end):
    shard = Shard()
    image = {"id": uuid + end, "type": kind, "data": json.dumps({"run": "r1"})}
    found = ShardMark(changed_keys.WINDOW, "public.dbz_signal", at(5), json.dumps(image).encode())
    shard.batch(control=[start()], marks=[marks(found)])
    assert shard.now.windows == {}


def test_runs_that_are_armed_again_keep_their_tables_and_take_the_new_mode():
    def armed(**told) -> bytes:
        return json.dumps({"type": "run-start", "run": "r1", "tables": [B, A, B]} | told).encode()

    shard = Shard()
    shard.batch(control=[armed(attempt=7)])
    assert shard.now.runs == {"r1": ArmedRun([A, B], TABLE_MODE, "r1")}
    assert shard.now.closed.below == 7
    shard.batch(control=[armed(attempt=9, tables=["x"], mode=ORDER_MODE, windows="w")])
    assert shard.now.runs == {"r1": ArmedRun([A, B], ORDER_MODE, "r1")}
    shard.batch(control=[start("r2")])
    assert shard.now.closed.below == 7, "attempts go on under a run that is armed"


@pytest.mark.parametrize(
    "told",
    [{"run": "r9"}, {"table": B}, {"position": ""}, {"position": "zz"}, {"position": "00" * 20},
     {"position": "ff"}],
)  # fmt: skip
def test_a_sweep_of_nothing_that_an_armed_run_reads_says_nothing(told):
    shard = Shard()
    shard.batch(control=[start()])
    sweep = {"type": "sweep", "run": "r1", "table": A, "position": at(5).hex()}
    shard.batch(control=[json.dumps(sweep | told).encode()])
    assert shard.outputs == []
    shard.batch(control=[json.dumps(sweep).encode()])
    assert [out.kind for out in shard.outputs] == [window.SURVIVORS, window.SWEPT]


def test_a_fence_only_rises():
    shard = Shard()
    for n in (5, 9, 7):
        fence = json.dumps({"type": "fence", "position": at(n).hex()}).encode()
        shard.batch(control=[start(), fence])
    assert shard.now.fence == at(9)


def test_the_end_of_one_run_takes_what_only_its_tables_had():
    shard = Shard()
    found = [
        ShardMark(kind, t, at(9))
        for kind in (changed_keys.TRUNCATE, changed_keys.BLIND)
        for t in (A, B)
    ]
    found += [ShardMark(changed_keys.OWN_SNAPSHOT, t, lsns.pack(1, 0, 7)) for t in (A, B)]
    shard.batch(control=[start("r1", A, B), start("r2", B)], marks=[marks(*found)])
    shard.batch(control=[end("r1")])
    kept = [shard.now.truncated_at, shard.now.blind, shard.now.own]
    assert [set(one) for one in kept] == [{B}, {B}, {B}]


def test_positions_of_truncates_are_forgotten_below_too_when_the_last_run_ends():
    """The next run's chunks may not begin below anything that was remembered."""
    for kind, highest in (
        (changed_keys.TRUNCATE, 9),
        (changed_keys.BLIND, 9),
        (changed_keys.OWN_SNAPSHOT, 5),
    ):
        shard = Shard()
        shard.batch(
            control=[start()],
            log=[log((A, b"[1]", "u", 5))],
            marks=[marks(ShardMark(kind, A, at(9)))],
        )
        shard.batch(control=[end()])
        assert shard.now == ShardState(forgotten_below=at(highest)), kind


@pytest.mark.parametrize(("until", "lo"), [(99, 99), (100, 100), (120, 100), (0, 100)])
def test_chunks_are_compared_with_where_the_log_ended_if_that_was_before_the_open_row(until, lo):
    shard = Shard()
    data = json.dumps({"run": "r1", "oldest": "", "bound": at(until)[4:].hex() if until else ""})
    image = {"id": "w-open", "type": "snapshot-window-open", "data": data}
    opened = ShardMark(
        changed_keys.WINDOW, "public.dbz_signal", at(100), json.dumps(image).encode()
    )
    shard.batch(control=[start()], marks=[marks(opened)])
    assert shard.now.windows["w"].open == at(lo)


def test_what_the_oldest_window_allows_is_forgotten():
    shard = Shard()
    shard.batch(control=[start()], marks=[marks(row("w1", "open", 10), row("w2", "open", 20))])
    shard.batch(log=[log(*((A, b"[%d]" % n, "u", n) for n in (5, 10, 15, 20, 25)))])
    shard.batch(marks=[marks(row("w3", "open", 30, oldest="w1"))])
    assert sorted(k for _, k in shard.touches()) == [b"[15]", b"[20]", b"[25]"]
    assert shard.now.forgotten_below == at(10)
    shard.batch(marks=[marks(row("w4", "open", 40, oldest="w2"))])
    assert [k for _, k in shard.touches()] == [b"[25]"]  # lo = 20 is beaten by what is above it
    assert set(shard.now.windows) == {"w2", "w3", "w4"}
    shard.batch(marks=[marks(row("w5", "open", 50, oldest="w1"))])  # gone: never back
    assert shard.now.forgotten_below == at(20)
    assert not shard.batch(marks=[marks(row("w1", "open", 10))])


def test_an_unknown_oldest_window_forgets_nothing():
    shard = Shard()
    shard.batch(control=[start()], log=[log((A, b"[1]", "u", 5))])
    shard.batch(marks=[marks(row("w1", "open", 10, oldest="w0"))])
    assert shard.now.forgotten_below == positions.LOWEST
    assert len(shard.touches()) == 1


def test_an_oldest_window_whose_open_row_was_not_seen_forgets_nothing():
    """The run was armed between its open and its close row: no chunk of ours can use it."""
    shard = Shard()
    shard.batch(control=[start()], log=[log((A, b"[1]", "u", 5))])
    shard.batch(marks=[marks(row("w0", "close", 8), row("w1", "open", 10, oldest="w0"))])
    assert shard.now.forgotten_below == positions.LOWEST
    shard.batch(marks=[marks(row("w2", "open", 20, oldest="w1"))])
    assert set(shard.now.windows) == {"w1", "w2"}


def test_floors_and_blind_spots_go_forward_only():
    shard = Shard()
    shard.batch(
        control=[start()],
        marks=[
            marks(
                ShardMark(changed_keys.TRUNCATE, A, at(9)), ShardMark(changed_keys.BLIND, A, at(4))
            )
        ],
    )
    shard.batch(
        marks=[
            marks(
                ShardMark(changed_keys.TRUNCATE, A, at(7)),
                ShardMark(changed_keys.TRUNCATE, B, at(8)),
            )
        ]
    )
    assert (shard.now.truncated_at, shard.now.blind) == ({A: at(9)}, {A: at(4)})
    shard.batch(
        marks=[
            marks(
                ShardMark(changed_keys.TRUNCATE, A, at(12)), ShardMark(changed_keys.BLIND, A, at(5))
            )
        ]
    )
    assert (shard.now.truncated_at, shard.now.blind) == ({A: at(12)}, {A: at(5)})


def test_an_own_snapshot_of_a_table_under_a_run_restarts_it_once():
    shard = Shard()
    own = [ShardMark(changed_keys.OWN_SNAPSHOT, t, lsns.pack(1, 0, 7)) for t in (A, B)]
    shard.batch(marks=[marks(*own)])
    assert shard.outputs == []
    shard.batch(control=[start()], marks=[marks(*own)])
    shard.batch(marks=[marks(*own)])
    assert shard.outputs == [window.Output(window.RESTART, A, A.encode())]


NOTHING = b"\xc4\x14" + bytes(20)
# An armed run, as these versions wrote it.
STATES_OF_OTHERS = {
    1: b"LKMW\x00\x01\x89\xa4runs\x81\xa2r1\x91\xa8public.a\xafforgotten_below" + NOTHING
    + b"\xa7highest" + NOTHING
    + b"\xa8segments\x90\xa4rows\x90\xa6floors\x80\xa5blind\x80\xa3own\x80\xa7windows\x80",
    2: b"LKMW\x00\x02\x8d\xa4runs\x81\xa2r1\x83\xa6tables\x91\xa8public.a\xa4mode\xa5table"
    b"\xa7windows\xa2r1\xafforgotten_below" + NOTHING + b"\xa7highest" + NOTHING
    + b"\xa8segments\x90\xa4rows\x90\xa6floors\x80\xa5blind\x80\xa3own\x80\xa7windows\x80"
    b"\xa8attempts\x80\xa6closed\x82\xa5below\x00\xa5above\x90\xa5fence" + NOTHING + b"\xa7decided\x80",
    state.VERSION + 1: b"LKMW" + (state.VERSION + 1).to_bytes(2) + b"anything",
}  # fmt: skip


@pytest.mark.parametrize(("version", "blob"), STATES_OF_OTHERS.items())
def test_a_state_of_another_version_is_refused_by_name(version, blob):
    with pytest.raises(StateVersionError) as caught:
        window.fold(blob, {}, shard=0)
    assert f"has version {version}, this lakemark reads version {state.VERSION}" in str(
        caught.value
    )
    newer = version > state.VERSION
    assert caught.value.message.endswith("a newer one" if newer else "an older one")
    assert caught.value.hint.endswith("a newer one" if newer else "snapshot the tables again")


@pytest.mark.parametrize(
    "blob", [b"", b"LKMW", b"XXXX\x00\x01\x80", b"LKMW\x00\x03\xff", b"LKMW\x00\x00\x80"]
)
def test_a_damaged_state_is_refused(blob):
    with pytest.raises(StateVersionError) as caught:
        decode_state(blob)
    assert caught.value.hint


def test_state_round_trip():
    before = ShardState(
        runs={"r": ArmedRun([A])},
        forgotten_below=at(1),
        highest=at(2),
        segments=[b"x"],
        rows=[1],
        truncated_at={A: at(3)},
        windows={"w": Window(at(1), b"")},
    )
    assert decode_state(encode_state(before)) == before


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([A, B]),
        st.sampled_from([b"[1]", b"[2]", b"[3]", b""]),
        st.sampled_from("cud"),
        st.integers(1, 60),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.tuples(EVENTS, st.integers(0, 60)), max_size=8))
def test_equals_a_plain_dict(batches):
    """Whatever the batches, what is remembered is the newest of everything not forgotten."""
    shard = Shard()
    shard.batch(control=[start("r1", A)])
    newest: dict = {}
    forgotten = 0
    windows: list[int] = []
    for events, n in batches:
        found = []
        if n:
            usable = [w for w in windows if w >= forgotten]
            oldest = f"w{usable[0]}" if usable else ""
            if f"w{n}" not in {f"w{w}" for w in windows}:
                found = [row(f"w{n}", "open", n, oldest=oldest)]
        shard.batch(log=[log(*events)] if events else [], marks=[marks(*found)] if found else [])
        for table, key, op, position in events:
            if table == A and position > forgotten:
                top, barrier = newest.get(key, (0, 0))
                if op != "u":
                    barrier = max(barrier, position)
                newest[key] = (max(top, position), barrier)
        if found and n >= forgotten:
            windows.append(n)
            if oldest:
                forgotten = max(forgotten, usable[0])
                newest = {k: v for k, v in newest.items() if v[0] > forgotten}
    found = shard.touches()
    assert set(found) == {(A, key) for key in newest}
    for key, (top, barrier) in newest.items():
        assert found[A, key][0] == at(top)
        if barrier > forgotten:  # one below decides nothing any more
            assert found[A, key][1] == at(barrier)
        elif not barrier:
            assert found[A, key][1] == positions.LOWEST


@pytest.mark.parametrize(
    "records",
    [
        [{"type": "run-start", "run": "r", "tables": [A]}],
        [{"type": "run-start", "run": "r", "tables": [A]}, {"type": "run-end", "run": "r"}],
        [{"type": "run-start", "run": "", "tables": [A]}],
        [{"type": "run-start", "tables": [A]}],
        [{"type": "run-start", "run": 7, "tables": [A]}],
        [{"type": "run-start", "run": "r", "tables": "x"}],
        [{"type": "run-end", "run": "never"}, {"type": "table-pause", "table": A}],
    ],
)
def test_the_driver_arms_exactly_when_a_shard_does(records):
    runs: set[str] = set()
    for record in records:
        with suppress(msgspec.ValidationError):
            window.arm(runs, converted(record))
    blobs = [msgspec.json.encode(record) for record in records]
    folded = window.fold(None, {window.CONTROL: blobs}, shard=0)
    assert runs == set(decode_state(folded.state).runs)
