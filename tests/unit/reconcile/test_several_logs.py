"""Shards of a pipeline with several connectors: each one's log is remembered as if it were alone."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import StateVersionError
from lakemark.reconcile import state, window
from lakemark.reconcile.outputs import SIZE
from lakemark.reconcile.state import joined, parted
from tests.unit.reconcile.test_window import A, B, end, log, marks, row, start

SHOP, CRM = "shop", "crm.eu"


def named(record: bytes, connector: str) -> bytes:
    return json.dumps({**json.loads(record), "connector": connector}).encode()


def chunk(connector: str, *, attempt: int, run: str = "r1") -> bytes:
    header = {"run": run, "table": A, "chunk": 0, "attempt": attempt, "shard": 0, "part": 0}
    text = json.dumps({**header, "connector": connector} if connector else header).encode()
    return len(text).to_bytes(4) + text + b"rows"


def rows_of(connector: str, said: list[tuple]) -> list[window.Row]:
    """What a batch brings of a connector: of the only one without a word of it."""
    rows = []
    for place, (what, n) in enumerate(said):
        source = window.source_of(connector, "topic/0")
        match what:
            case "start" | "end":
                record = (start if what == "start" else end)(f"r{n % 2}")
                blob = named(record, connector) if connector else record
                rows.append((window.CONTROL, "control/0", place, blob))
            case "touch":
                rows.append((window.TOUCHES, source, place, log((A if n % 2 else B, b"k", "u", n))))
            case "open" | "close":
                mark = row(f"w{n % 3}", what, n, oldest=f"w{n % 2}")
                rows.append((window.MARKS, source, place, marks(mark)))
            case "chunk":
                blob = chunk(connector, attempt=n)
                rows.append((window.CHUNK, "chunks/0", place, blob))
    return rows


SAID = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "touch", "touch", "open", "close", "chunk"]),
        st.integers(1, 40),
    ),
    max_size=6,
)


def told(outputs) -> list:
    """Outputs as they are for the tables: sizes are of each."""
    return sorted((out.kind, out.table, out.blob) for out in outputs if out.kind != SIZE)


@given(st.lists(st.tuples(SAID, SAID), max_size=6))
def test_each_is_folded_as_if_it_were_alone(batches):
    together: bytes | None = None
    alone: dict[str, bytes | None] = {SHOP: None, CRM: None}
    for batch in batches:
        said = dict(zip((SHOP, CRM), batch, strict=True))
        every = [one for name, some in said.items() for one in rows_of(name, some)]
        both = window.fold_rows(0, every, together)
        outputs = []
        for name, some in said.items():
            own = window.fold_rows(0, rows_of("", some), alone[name])
            if own is not None:
                alone[name] = own.state or alone[name]
                outputs += own.outputs
        if both is not None:
            together = both.state or together
            assert told(both.outputs) == told(outputs)
        assert parted(together) == {name: blob for name, blob in alone.items() if blob is not None}


def test_positions_of_one_log_forget_nothing_of_another():
    first = rows_of(SHOP, [("start", 1), ("touch", 31), ("open", 30)])
    other = rows_of(CRM, [("start", 1), ("touch", 5)])
    found = window.fold_rows(0, first + other, None)
    assert found is not None
    kept = {name: window.touched(blob).num_rows for name, blob in parted(found.state).items()}
    assert kept == {SHOP: 1, CRM: 1}


def test_the_only_connector_has_the_blob_that_it_always_had():
    found = window.fold_rows(0, rows_of("", [("start", 1), ("touch", 3)]), None)
    assert found is not None
    assert found.state is not None
    assert joined(parted(found.state)) == found.state
    assert state.decode_state(found.state).runs


@pytest.mark.parametrize(
    "blob", [b"LKMS\x00\x03\xff", b"LKMS\x00\x09" + msgspec.msgpack.encode({})]
)
def test_a_blob_of_several_that_is_damaged_or_newer_is_refused(blob):
    with pytest.raises(StateVersionError):
        parted(blob)
