"""Which rows of a chunk survive, fill or are void: the real fold, batch by batch."""

import json

import msgspec
import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import change_batch
from lakemark.model.change_batch import KeyColumns
from lakemark.model.comparisons import Comparison
from lakemark.reconcile import chunks, window
from lakemark.reconcile.chunks import Settled
from lakemark.reconcile.state import decode_state
from lakemark.source import changed_keys
from lakemark.source.changed_keys import ShardMark
from tests.unit.reconcile.test_window import A, B, at, end, log, marks, row, start

KEY = KeyColumns(("id",))


def part(*keys: int, attempt: int = 1, number: int = 0, absent: bool = False, table=A, run="r1"):
    names = pa.array([b"[%d]" % k for k in keys], pa.binary())
    make = change_batch.absences if absent else change_batch.reads
    columns = {"id": pa.array(keys, pa.int64())}
    if not absent:
        columns["b"] = pa.array([f"b{k}" for k in keys], pa.string())
    image = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    packet = make(names, image, source_ts=5, table=table, key_columns=KEY)
    header = {"run": run, "table": table, "chunk": 0, "attempt": attempt, "shard": 0,
              "part": number}  # fmt: skip
    key = json.dumps(header).encode()
    return len(key).to_bytes(4) + key + change_batch.encode(packet)


def manifest(*, attempt=1, parts=1, lo="w1", hi="w1", table=A, run="r1", server="s", chunk=0):
    return json.dumps(
        {"type": "chunk", "run": run, "table": table, "chunk": chunk, "attempt": attempt,
         "parts": {"0": parts} if parts else {}, "lo": lo, "hi": hi, "server": server}
    ).encode()  # fmt: skip


def void(attempt: int) -> bytes:
    return json.dumps({"type": "void", "attempt": attempt}).encode()


class Shard:
    def __init__(self, *control: bytes):
        self.state: bytes | None = None
        self.survivors: dict[str, list[dict]] = {}
        self.settled: list[Settled] = []
        self.batch(control=control or (start(),))

    def batch(self, *, control=(), log=(), marks=(), parts=()) -> list[Settled]:
        records = {
            window.CONTROL: control,
            window.TOUCHES: log,
            window.MARKS: marks,
            window.CHUNK: parts,
        }
        first, again = (window.fold(self.state, records, shard=0) for _ in "12")
        assert first == again
        self.state = first.state or self.state
        new = []
        for out in first.outputs:
            if out.kind == window.SURVIVORS:
                found = change_batch.decode(out.blob).to_pylist()
                self.survivors.setdefault(out.source, []).extend(found)
            elif out.kind == window.SETTLED:
                new.append(msgspec.json.decode(out.blob, type=Settled))
        self.settled += new
        return new

    def keys(self, attempt: int = 1, *, record: int = change_batch.NET) -> list[bytes]:
        found = self.survivors.get(f"chunk/{attempt}", [])
        return [r["key"] for r in found if r["record"] == record]


WINDOW = (row("w1", "open", 100), row("w1", "close", 110))


def test_a_chunk_without_touches_survives_at_lo():
    shard = Shard()
    (done,) = shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1, 2)])
    assert (done.rows, done.survivors, done.fills, done.void) == (2, 2, 0, "")
    assert (done.lo, done.hi) == (at(100).hex(), at(110).hex())
    rows = shard.survivors["chunk/1"]
    assert {r["position"] for r in rows} == {r["net_position"] for r in rows} == {at(100)}
    assert [r["row"]["b"] for r in rows] == ["b1", "b2"]


@pytest.mark.parametrize("order", ["pmw", "pwm", "mpw", "mwp", "wpm", "wmp"])
def test_it_is_decided_when_all_has_come_whatever_the_order(order):
    shard = Shard()
    given = {
        "p": {"parts": [part(1)]},
        "m": {"control": [manifest()]},
        "w": {"marks": [marks(*WINDOW)]},
    }
    *before, last = order
    for name in before:
        assert shard.batch(**given[name]) == []
    assert len(shard.batch(**given[last])) == 1
    assert shard.keys() == [b"[1]"]
    assert decode_state(shard.state).attempts == {}


def test_touches_above_lo_win_and_those_at_or_below_do_not():
    shard = Shard()
    shard.batch(log=[log((A, b"[1]", "u", 99), (A, b"[2]", "u", 101), (A, b"[3]", "d", 105))])
    (done,) = shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1, 2, 3, 4)])
    assert (done.survivors, done.fills) == (2, 1)
    assert shard.keys() == [b"[1]", b"[4]"]
    assert shard.keys(record=change_batch.FILL) == [b"[2]"], "3 was deleted: nothing to fill"


def test_touches_of_other_tables_do_not_count():
    shard = Shard(start("r1", A, B))
    shard.batch(log=[log((B, b"[1]", "u", 105))])
    shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1)])
    assert shard.keys() == [b"[1]"]


def test_a_barrier_above_lo_fills_nothing_a_later_update_notwithstanding():
    shard = Shard()
    shard.batch(log=[log((A, b"[1]", "c", 104), (A, b"[1]", "u", 106))])
    (done,) = shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1)])
    assert (done.survivors, done.fills) == (0, 0)


def test_absent_keys_are_deletes_that_survive_like_rows():
    shard = Shard()
    shard.batch(log=[log((A, b"[8]", "u", 105))])
    parts = [part(1), part(8, 9, number=1, absent=True)]
    (done,) = shard.batch(control=[manifest(parts=2)], marks=[marks(*WINDOW)], parts=parts)
    assert (done.rows, done.survivors, done.fills) == (1, 2, 0)
    rows = {r["key"]: (r["action"], r["op"]) for r in shard.survivors["chunk/1"]}
    assert rows == {b"[1]": ("upsert", "r"), b"[9]": ("delete", "d")}


def test_a_truncate_above_lo_takes_all_rows():
    shard = Shard()
    shard.batch(marks=[marks(*WINDOW, ShardMark(changed_keys.TRUNCATE, A, at(105)))])
    (done,) = shard.batch(control=[manifest()], parts=[part(1)])
    assert (done.rows, done.survivors, done.void) == (1, 0, "")
    assert shard.keys() == []


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    "kind", [changed_keys.TRUNCATE, changed_keys.BLIND, changed_keys.OWN_SNAPSHOT]
)
def test_the_second_mark_of_a_run_counts_where_the_first_one_does_not(kind, apart):
    """A truncate below `lo` removes nothing of the chunk; the one above it removes all."""
    major = [0, 0] if kind == changed_keys.OWN_SNAPSHOT else [99, 105]
    both = [ShardMark(kind, A, lsns.pack(1, m, n)) for m, n in zip(major, (99, 105), strict=True)]
    shard = Shard()
    for found in [both[:1], both[1:]] if apart else [both]:
        shard.batch(marks=[marks(*found)])
    (done,) = shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1)])
    assert (done.survivors, shard.keys()) == (0, [])
    assert bool(done.void) is (kind != changed_keys.TRUNCATE)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (ShardMark(changed_keys.BLIND, A, at(101)), chunks.BLIND),
        (ShardMark(changed_keys.BLIND, A, at(99)), ""),
        (ShardMark(changed_keys.BLIND, B, at(101)), ""),
        (ShardMark(changed_keys.OWN_SNAPSHOT, A, lsns.pack(1, 0, 101)), chunks.OWN_SNAPSHOT),
        (ShardMark(changed_keys.OWN_SNAPSHOT, A, lsns.pack(1, 0, 100)), chunks.OWN_SNAPSHOT),
        (ShardMark(changed_keys.OWN_SNAPSHOT, A, lsns.pack(1, 0, 99)), ""),
        (ShardMark(changed_keys.OWN_SNAPSHOT, A, lsns.pack(2, 0, 1)), chunks.OWN_SNAPSHOT),
    ],
)
def test_doubt_voids(mark, expected):
    shard = Shard()
    (done,) = shard.batch(control=[manifest()], marks=[marks(*WINDOW, mark)], parts=[part(1)])
    assert done.void == expected
    assert shard.keys() == ([] if expected else [b"[1]"])


def test_the_close_row_must_be_of_the_server_that_was_read():
    shard = Shard()
    (done,) = shard.batch(
        control=[manifest(server="yesterday")], marks=[marks(*WINDOW)], parts=[part(1)]
    )
    assert (done.void, shard.keys()) == (chunks.RESTARTED, [])


def test_a_window_that_is_forgotten_voids():
    shard = Shard()
    found = [*WINDOW, row("w2", "open", 110), row("w2", "close", 120), row("w3", "open", 120)]
    shard.batch(marks=[marks(*found)], control=[manifest(lo="w1", hi="w2")])
    shard.batch(marks=[marks(row("w3", "close", 130), row("w4", "open", 130, oldest="w3"))])
    assert set(decode_state(shard.state).windows) == {"w1", "w2", "w3", "w4"}
    (done,) = shard.batch(parts=[part(1)])
    assert (done.void, shard.keys()) == (chunks.FORGOTTEN, [])
    (again,) = shard.batch(
        control=[manifest(attempt=2, lo="w3", hi="w3")], parts=[part(1, attempt=2)]
    )
    assert (again.void, shard.keys(2)) == ("", [b"[1]"])
    shard.batch(marks=[marks(row("w5", "open", 140, oldest="w4"))])
    assert set(decode_state(shard.state).windows) == {"w4", "w5"}


def test_deciding_comes_before_forgetting():
    shard = Shard()
    shard.batch(log=[log((A, b"[1]", "u", 105))], marks=[marks(row("w1", "open", 100))])
    (done,) = shard.batch(
        control=[manifest(hi="w1")],
        marks=[marks(row("w1", "close", 110), row("w2", "open", 110, oldest="w2"))],
        parts=[part(1)],
    )
    assert (done.void, done.survivors) == ("", 0)
    assert window.touched(shard.state).num_rows == 0


def test_parts_that_are_missing_keep_it_waiting_and_a_void_ends_it():
    shard = Shard()
    assert shard.batch(control=[manifest(parts=2)], marks=[marks(*WINDOW)], parts=[part(1)]) == []
    shard.batch(control=[void(1)])
    assert shard.batch(parts=[part(2, number=1)]) == []
    assert decode_state(shard.state).attempts == {}
    (done,) = shard.batch(control=[manifest(attempt=2)], parts=[part(1, attempt=2)])
    assert (done.attempt, shard.keys(2), shard.keys(1)) == (2, [b"[1]"], [])


def test_parts_after_the_decision_and_manifests_that_come_again_do_nothing():
    shard = Shard()
    shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1)])
    before = shard.state
    assert shard.batch(control=[manifest()], parts=[part(1), part(5)]) == []
    assert shard.state == before


def test_a_shard_without_rows_settles_too():
    shard = Shard()
    (done,) = shard.batch(control=[manifest(parts=0)], marks=[marks(*WINDOW)])
    assert (done.rows, done.void) == (0, "")
    assert shard.survivors == {}


def test_an_empty_chunk_says_which_columns_the_table_has():
    shard = Shard()
    shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part()])
    assert shard.survivors == {"chunk/1": []}


def test_closed_attempts_stay_few():
    shard = Shard(start())
    for n in (0, 2, 1, 5, 3):
        shard.batch(control=[void(n)])
    closed = decode_state(shard.state).closed
    assert (closed.below, closed.above) == (4, [5])
    shard.batch(control=[json.dumps({"type": "attempts", "attempt": 1 << 32}).encode()])
    closed = decode_state(shard.state).closed
    assert (closed.below, closed.above) == (1 << 32, [])


def test_what_belongs_to_no_armed_run_is_nobodys():
    shard = Shard()
    shard.batch(control=[manifest(run="r9")], marks=[marks(*WINDOW)], parts=[part(1, run="r9")])
    shard.batch(control=[manifest(table=B)], parts=[part(1, table=B)])
    assert decode_state(shard.state).attempts == {}
    shard.batch(control=[end()])
    assert shard.settled == []
    assert decode_state(shard.state).runs == {}


def test_order_mode_waits_for_the_fence():
    order = json.dumps({"type": "run-start", "run": "r1", "tables": [A], "mode": "order"}).encode()
    shard = Shard(order)

    def fence(n: int) -> bytes:
        return json.dumps({"type": "fence", "position": at(n).hex()}).encode()

    assert shard.batch(control=[manifest()], marks=[marks(*WINDOW)], parts=[part(1)]) == []
    assert shard.batch(control=[fence(109)]) == []
    shard.batch(log=[log((A, b"[1]", "u", 105))])
    (done,) = shard.batch(control=[fence(110)])
    assert done.survivors == 0


def test_order_mode_voids_what_is_older_than_another_runs_chunk():
    def armed(run: str) -> bytes:
        record = {"type": "run-start", "run": run, "tables": [A], "mode": "order", "windows": "w"}
        return json.dumps(record).encode()

    fence = json.dumps({"type": "fence", "position": at(500).hex()}).encode()
    shard = Shard(armed("r1"), armed("r2"), fence)
    rows = [*(row("w1", e, n, run="w") for e, n in (("open", 100), ("close", 110))),
            *(row("w2", e, n, run="w") for e, n in (("open", 110), ("close", 120)))]  # fmt: skip
    shard.batch(marks=[marks(*rows)])
    newer = manifest(attempt=2, run="r2", lo="w2", hi="w2")
    (done,) = shard.batch(control=[newer], parts=[part(1, attempt=2, run="r2")])
    assert done.void == ""
    (late,) = shard.batch(control=[manifest(attempt=1, hi="w2")], parts=[part(1)])
    assert late.void == chunks.OVERLAP
    (own,) = shard.batch(
        control=[manifest(attempt=3, run="r2", hi="w2")], parts=[part(1, attempt=3, run="r2")]
    )
    assert own.void == "", "chunks of one run have different keys"


@pytest.mark.parametrize("first", ["r2", "r3"])
def test_in_order_mode_the_newest_chunk_of_any_other_run_counts(first):
    """Of two others the one is older than the late chunk, the other is newer."""
    runs = [
        {"type": "run-start", "run": run, "tables": [A], "mode": "order", "windows": "w"}
        for run in ("r1", "r2", "r3")
    ]
    fence = {"type": "fence", "position": at(500).hex()}
    shard = Shard(*[json.dumps(record).encode() for record in (*runs, fence)])
    rows = [row(f"w{n}", end, 10 * n + 90 + 10 * (end == "close"), run="w")
            for n in (1, 2, 3) for end in ("open", "close")]  # fmt: skip
    shard.batch(marks=[marks(*rows)])
    for attempt, (run, window_of) in enumerate(
        sorted([("r2", "w1"), ("r3", "w3")], key=lambda one: one[0] != first), 2
    ):
        said = manifest(attempt=attempt, run=run, lo=window_of, hi=window_of)
        (done,) = shard.batch(control=[said], parts=[part(1, attempt=attempt, run=run)])
        assert done.void == (chunks.OVERLAP if (first, run) == ("r3", "r2") else "")
    late = manifest(attempt=9, lo="w2", hi="w3")
    (done,) = shard.batch(control=[late], parts=[part(1, attempt=9)])
    assert done.void == chunks.OVERLAP


def test_a_sweep_is_a_truncate_of_the_table():
    shard = Shard()
    sweep = {"type": "sweep", "run": "r1", "table": A, "position": at(100).hex()}
    records = {window.CONTROL: [json.dumps(sweep).encode()]}
    found = window.fold(shard.state, records, shard=0).outputs
    assert [out.kind for out in found] == [window.SURVIVORS, window.SWEPT, window.SIZE]
    (one,) = change_batch.decode(found[0].blob).to_pylist()
    assert (one["record"], one["position"]) == (change_batch.TRUNCATE, at(100))
    other = window.fold(shard.state, records, shard=1).outputs
    assert [out.kind for out in other] == [window.SIZE]
    foreign = {window.CONTROL: [json.dumps({**sweep, "table": B}).encode()]}
    assert [o.kind for o in window.fold(shard.state, foreign, shard=0).outputs] == [window.SIZE]


@pytest.mark.parametrize("mode", ["table", "order"])
def test_it_waits_for_the_open_row_of_lo_and_the_close_row_of_hi(mode):
    record = {"type": "run-start", "run": "r1", "tables": [A], "mode": mode}
    fence = {"type": "fence", "position": at(500).hex()}
    shard = Shard(json.dumps(record).encode(), json.dumps(fence).encode())
    rows = [row("w1", "close", 110), row("w2", "open", 110), row("w2", "close", 120)]
    told = {"control": [manifest(lo="w2", hi="w3")], "parts": [part(1)]}
    assert shard.batch(marks=[marks(*rows, row("w3", "open", 120))], **told) == []
    (done,) = shard.batch(marks=[marks(row("w3", "close", 130))])
    assert (done.lo, done.hi) == (at(110).hex(), at(130).hex())
    told = {"control": [manifest(attempt=2, lo="w1", hi="w2")], "parts": [part(2, attempt=2)]}
    assert shard.batch(**told) == [], "its open row was not seen"


@pytest.mark.parametrize(("server", "closing"), [("s", "s"), ("other", "s"), ("", "s"), ("", "")])
def test_the_life_of_the_server_must_be_that_which_was_read(server, closing):
    """Records of older versions do not say it: what they were about is read again."""
    data = {"run": "r1", "server": closing}
    image = {"id": "w1-close", "type": "snapshot-window-close", "data": json.dumps(data)}
    closed = ShardMark(
        changed_keys.WINDOW, "public.dbz_signal", at(110), json.dumps(image).encode()
    )
    read = json.loads(manifest()) | {"server": server}
    shard = Shard()
    (done,) = shard.batch(
        control=[json.dumps(read).encode()],
        marks=[marks(row("w1", "open", 100), closed)],
        parts=[part(1)],
    )
    assert (done.void == "") == (server == "s")


def test_several_attempts_are_decided_each_by_itself_in_the_order_of_their_numbers():
    shard = Shard(start("r1", A, B))
    shard.batch(log=[log((A, b"[1]", "u", 105))])
    found = shard.batch(
        control=[manifest(attempt=3, table=B), manifest(attempt=2), manifest(attempt=4, parts=2)],
        marks=[marks(*WINDOW)],
        parts=[part(1, attempt=n, table=t) for n, t in ((3, B), (2, A), (4, A))],
    )
    assert [(one.attempt, one.survivors) for one in found] == [(2, 0), (3, 1)]
    assert set(decode_state(shard.state).attempts) == {4}


def test_parts_for_other_shards_and_parts_that_come_again_change_nothing():
    shard = Shard()
    foreign = part(9).replace(b'"shard": 0', b'"shard": 1')
    damaged = (3).to_bytes(4) + b"{]}"
    first = part(1)
    shard.batch(parts=[foreign, damaged, first, part(5)], marks=[marks(*WINDOW)])
    (done,) = shard.batch(control=[manifest()])
    assert (done.rows, shard.keys()) == (1, [b"[1]"])


def test_an_attempt_of_a_run_that_ended_is_over():
    shard = Shard(start("r1"), start("r2"))
    shard.batch(control=[manifest(parts=2, run="r1")], parts=[part(1)], marks=[marks(*WINDOW)])
    shard.batch(control=[end("r1")])
    found = decode_state(shard.state)
    assert (found.attempts, 1 in found.closed) == ({}, True)


def verifying(**more) -> bytes:
    record = {"type": "run-start", "run": "r1", "tables": [A], "verify": "report", **more}
    return json.dumps(record).encode()


def fence_at(n: int) -> bytes:
    return json.dumps({"type": "fence", "position": at(n).hex()}).encode()


def comparisons(state, **records) -> tuple[bytes | None, list[Comparison]]:
    found = window.fold(state, records, shard=0)
    assert not [out for out in found.outputs if out.kind == window.SURVIVORS]
    told = [out for out in found.outputs if out.kind == window.COMPARISON]
    assert {out.table for out in told} <= {A}
    return found.state or state, [msgspec.msgpack.decode(out.blob, type=Comparison) for out in told]


@pytest.mark.parametrize("mode", ["table", "order"])
def test_rows_of_a_verify_run_are_compared_and_not_merged(mode):
    """Not before all events up to the close row are applied, whether there are output topics."""
    state, _ = comparisons(None, control=[verifying(mode=mode, values=True)])
    touches = [log((A, b"[2]", "u", 105), (A, b"[4]", "d", 106), (A, b"[1]", "u", 100))]
    state, found = comparisons(
        state, control=[manifest(parts=2)], touches=touches, marks=[marks(*WINDOW)],
        chunk=[part(1, 2, 3), part(4, 5, number=1, absent=True)],
    )  # fmt: skip
    assert found == [], "an event up to the close row may be on its way"
    state, found = comparisons(state, control=[fence_at(109)])
    assert found == []
    state, (one,) = comparisons(state, control=[fence_at(110)])
    assert (one.run, one.table, one.chunk, one.attempt, one.shard) == ("r1", A, 0, 1, 0)
    assert (one.position, one.verify, one.values, one.newer) == (at(100), "report", True, 2)
    rows = change_batch.decode(one.rows).to_pylist()
    kept = [(r["key"], r["action"]) for r in rows if r["record"] == change_batch.NET]
    assert kept == [(b"[1]", "upsert"), (b"[3]", "upsert"), (b"[5]", "delete")]
    assert decode_state(state).attempts == {}


def test_a_truncate_leaves_nothing_to_compare():
    state, _ = comparisons(None, control=[verifying(), fence_at(500)])
    cut = ShardMark(changed_keys.TRUNCATE, A, at(105), b"")
    _, found = comparisons(
        state, control=[manifest()], marks=[marks(*WINDOW, cut)], chunk=[part(1)]
    )
    assert found == []


def test_whether_a_run_compares_is_known_in_later_batches():
    state, _ = comparisons(None, control=[verifying(verify="repair"), fence_at(500)])
    _, (one,) = comparisons(state, control=[manifest()], marks=[marks(*WINDOW)], chunk=[part(1)])
    assert (one.verify, one.values) == ("repair", False)


@pytest.mark.parametrize(("verify", "void"), [("report", ""), ("repair", chunks.OVERLAP)])
def test_in_order_mode_only_what_writes_rows_is_in_the_way_of_older_ones(verify, void):
    other = {"type": "run-start", "run": "r2", "tables": [A], "mode": "order", "windows": "w"}
    mine = verifying(verify=verify, mode="order", windows="w")
    shard = Shard(mine, json.dumps(other).encode(), fence_at(500))
    rows = [*(row("w1", e, n, run="w") for e, n in (("open", 100), ("close", 110))),
            *(row("w2", e, n, run="w") for e, n in (("open", 110), ("close", 120)))]  # fmt: skip
    shard.batch(marks=[marks(*rows)])
    (done,) = shard.batch(
        control=[manifest(attempt=2, lo="w2", hi="w2")], parts=[part(1, attempt=2)]
    )
    assert done.void == ""
    late = manifest(attempt=1, run="r2", hi="w2")
    (late,) = shard.batch(control=[late], parts=[part(1, run="r2")])
    assert late.void == void
