"""What is decided of a chunk's rows, column by column, against the rule row by row."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import change_batch
from lakemark.model.change_batch import KeyColumns
from lakemark.reconcile import chunks
from lakemark.reconcile.key_log import remembered
from tests.kit.nightly import examples

KEY = KeyColumns(("id",))
LO = lsns.pack(0, 100, 1)


def at(major: int) -> bytes:
    return lsns.pack(0, major, 1)


def key_of(number: int) -> bytes:
    return b"[%d]" % number


def encoded(keys: list[int], *, absent: bool, wide: bool) -> bytes:
    """A part; `wide` ones are large enough to be compressed."""
    columns = {"id": pa.array(keys, pa.int64())}
    if not absent:
        columns["b"] = pa.array([f"b{k}" * (3000 if wide else 1) for k in keys], pa.string())
    rows = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    make = change_batch.absences if absent else change_batch.reads
    names = pa.array([key_of(k) for k in keys], pa.binary())
    return change_batch.encode(make(names, rows, source_ts=5, table="public.t", key_columns=KEY))


def touched(found: dict[int, tuple[int, int]]) -> pa.RecordBatch:
    schema = remembered(pa.binary(lsns.WIDTH))
    columns = [
        pa.array(["public.t"] * len(found)).dictionary_encode().cast(schema.field(0).type),
        pa.array([key_of(k) for k in found], pa.binary()),
        pa.array([at(p) for p, _ in found.values()], pa.binary(lsns.WIDTH)),
        pa.array([at(b) for _, b in found.values()], pa.binary(lsns.WIDTH)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


part = st.tuples(st.sets(st.integers(0, 12), max_size=5), st.booleans(), st.booleans())
moments = st.integers(98, 103)
newest = st.dictionaries(st.integers(0, 12), st.tuples(moments, moments), max_size=8)


@settings(max_examples=examples(200))
@given(
    parts=st.lists(part, min_size=1, max_size=4), touches=newest, truncated_at=st.none() | moments
)
def test_a_chunk_is_decided_as_the_rule_says_of_each_row(parts, touches, truncated_at):
    seen: set[int] = set()
    absent = {}
    given_parts, wanted, read = {}, [], 0
    for number, (keys, missing, wide) in enumerate(parts):
        mine = sorted(keys - seen)
        seen |= keys
        absent |= dict.fromkeys(mine, missing)
        given_parts[number] = encoded(mine, absent=missing, wide=wide)
        read += 0 if missing else len(mine)
        for key in mine:
            position, barrier = touches.get(key, (0, 0))
            if position <= 100:
                wanted.append((change_batch.NET, key_of(key), missing))
            elif barrier <= 100 and not missing:
                wanted.append((change_batch.FILL, key_of(key), missing))
    below = b"" if truncated_at is None else at(truncated_at)
    decision = chunks.decide(given_parts, LO, touched(touches), truncated_at=below)
    assert decision.rows == read
    if truncated_at is not None and truncated_at > 100:
        assert (decision.blob, decision.survivors, decision.fills) == (None, 0, 0)
        return
    assert decision.blob is not None
    rows = change_batch.decode(decision.blob).to_pylist()
    found = [(r["record"], r["key"], r["action"] == "delete") for r in rows]
    assert sorted(found) == sorted(wanted)
    assert [r["record"] for r in rows] == sorted(r["record"] for r in rows)
    assert {r["position"] for r in rows} | {r["net_position"] for r in rows} <= {LO}
    assert all(r["row"]["id"] == int(r["key"].strip(b"[]")) for r in rows)
    texts = {r["row"]["id"]: r["row"].get("b") for r in rows}
    assert all((text or "").startswith(f"b{k}") or absent[k] for k, text in texts.items())
    kinds = [record for record, *_ in wanted]
    assert decision.survivors == kinds.count(change_batch.NET)
    assert decision.fills == kinds.count(change_batch.FILL)
