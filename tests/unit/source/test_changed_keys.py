"""Packing of the reconcile lane."""

import json
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.json import envelope
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model.events import Headers, Kind, SourceIdentity
from lakemark.source import changed_keys
from tests.kit.golden import samples

SHOP = SourceIdentity("postgresql", "shop", "public.dbz_signal")


def heads_of(rows: list[tuple[Kind, str, str, bytes]]) -> Headers:
    n = len(rows)
    return Headers(
        kind=[int(kind) for kind, *_ in rows],
        table=[table for _, table, _, _ in rows],
        op=[op for _, _, op, _ in rows],
        position=[position for *_, position in rows],
        source_ts=[0] * n,
        snapshot=["false"] * n,
        before=[None] * n,
        after=[None] * n,
        schema=[None] * n,
        reason=[None] * n,
        detail=[None] * n,
        transaction=[None] * n,
    )


def at(n: int) -> bytes:
    return lsns.pack(1, n, n)


def unpacked(packed: changed_keys.Packed) -> list[tuple[int, tuple]]:
    return [
        (shard, tuple(row.values()))
        for shard, blob in packed.touches.items()
        for row in changed_keys.unpack_touches(blob).to_pylist()
    ]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["public.a", "public.b", "ä.ö"]),
        st.one_of(st.none(), st.binary(max_size=6)),
        st.sampled_from("cud"),
        st.integers(0, 50),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(RECORDS, st.integers(1, 5))
def test_round_trip(records, shards):
    heads = heads_of([(Kind.CHANGE, table, op, at(n)) for table, _, op, n in records])
    keys = [key for _, key, *_ in records]
    packed = changed_keys.pack_touches(CONVERTERS[JSON], heads, keys, shards=shards)
    expected: dict[int, list[tuple]] = {}
    for table, key, op, n in records:
        if key is not None:
            shard = crc32(table.encode() + b"\0" + key) % shards
            assert shard == changed_keys.shard_of(table, key, shards)
            expected.setdefault(shard, []).append((table, key, at(n), op != "u"))
    found: dict[int, list[tuple]] = {}
    for shard, row in unpacked(packed):
        found.setdefault(shard, []).append(row)
    assert found == expected  # in order, inside a shard
    blind = {(table, max(r[3] for r in records if r[0] == table and r[1] is None))
             for table, key, *_ in records if key is None}  # fmt: skip
    marks = changed_keys.unpack_marks(packed.marks) if packed.marks else []
    assert {(m.table, m.position) for m in marks} == {(table, at(n)) for table, n in blind}


def test_reads_tombstones_and_bad_records_are_no_touches():
    kinds = [k for k in Kind if k not in {Kind.CHANGE, Kind.TRUNCATE, Kind.OWN_SNAPSHOT}]
    heads = heads_of([(k, "public.a", "r", at(5)) for k in kinds])
    packed = changed_keys.pack_touches(CONVERTERS[JSON], heads, [b"[1]"] * len(kinds), shards=2)
    assert packed == changed_keys.Packed({}, None)


def test_only_inserts_and_deletes_are_barriers():
    heads = heads_of([(Kind.CHANGE, "t", op, at(i)) for i, op in enumerate("cud")])
    rows = unpacked(changed_keys.pack_touches(CONVERTERS[JSON], heads, [b"[1]"] * 3, shards=1))
    assert [row[3] for _, row in rows] == [True, False, True]


def test_truncates_and_own_snapshots_go_to_every_shard_once_per_table():
    rows = [
        (Kind.TRUNCATE, "public.a", "t", at(5)),
        (Kind.TRUNCATE, "public.a", "t", at(9)),
        (Kind.TRUNCATE, "public.a", "t", at(7)),
        (Kind.OWN_SNAPSHOT, "public.a", "r", lsns.pack(1, 0, 3)),
        (Kind.OWN_SNAPSHOT, "public.a", "r", lsns.pack(1, 0, 3)),
        (Kind.OWN_SNAPSHOT, "public.b", "r", lsns.pack(1, 0, 3)),
    ]
    packed = changed_keys.pack_touches(
        CONVERTERS[JSON], heads_of(rows), [None] * 3 + [b"[1]"] * 3, shards=2
    )
    assert packed.touches == {}
    assert changed_keys.unpack_marks(packed.marks) == [
        changed_keys.ShardMark(changed_keys.TRUNCATE, "public.a", at(9)),
        changed_keys.ShardMark(changed_keys.OWN_SNAPSHOT, "public.a", lsns.pack(1, 0, 3)),
        changed_keys.ShardMark(changed_keys.OWN_SNAPSHOT, "public.b", lsns.pack(1, 0, 3)),
    ]


def test_samples():
    """Of the signal table only inserted open and close rows count."""
    table = samples(wrapped=False)
    records = list(table.values())
    heads = envelope.decode(
        [r.value for r in records], [r.key for r in records], identity=SHOP, epoch=1
    )
    keys = [r.key for r in records]
    packed = changed_keys.pack_touches(CONVERTERS[JSON], heads, keys, shards=3)
    rows = [row for _, row in unpacked(packed)]
    keyed = [n for n in table if n.startswith(("c_", "u_", "d_", "pk_")) and "nopk" not in n]
    assert len(rows) == len(keyed)
    marks = changed_keys.unpack_marks(packed.marks)
    assert {(m.kind, m.table) for m in marks} == {
        ("truncate", "public.nopk"),
        ("blind", "public.nopk"),
        *(("own-snapshot", f"public.{t}") for t in ("customers", "nopk", "composite")),
        ("window", "public.dbz_signal"),
    }
    windows = [json.loads(m.data) for m in marks if m.kind == "window"]
    assert {w["type"] for w in windows} == {"snapshot-window-open", "snapshot-window-close"}
    assert all(w["id"].startswith("9c524780-") for w in windows)


def test_window_rows_count_with_op_c_only():
    row = samples(wrapped=False)["signal_table_row_snapshot-window-open"]
    for op, expected in (("c", True), ("u", False), ("d", False), ("r", False)):
        value = row.value.replace(b'"op":"c"', b'"op":"%s"' % op.encode())
        heads = envelope.decode([value], [row.key], identity=SHOP, epoch=1)
        assert heads.kind == [Kind.SIGNAL]
        packed = changed_keys.pack_touches(CONVERTERS[JSON], heads, [row.key], shards=1)
        assert (packed.marks is not None) == expected
        assert packed.touches == {}


def test_window_row_columns_go_by_place():
    image = b'{"uuid":"x-open","kind":"snapshot-window-open","payload":"{}"}'
    assert changed_keys.window_row(
        CONVERTERS[JSON].first_cells(image, 3)
    ) == changed_keys.WindowRow("x-open", "snapshot-window-open", "{}")
    for other in (
        b"",
        b"5",
        b"{]",
        b'{"id":"a"}',
        b'{"id":"a","type":"log","data":"{}"}',
        b'{"a":5,"b":6}',
    ):
        assert changed_keys.window_row(CONVERTERS[JSON].first_cells(other, 3)) is None
