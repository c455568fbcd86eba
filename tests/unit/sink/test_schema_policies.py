"""What every policy does with every change of a schema that events tell of, in the real tables."""

import json
from functools import partial
from itertools import product
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark import plans
from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import TableError
from lakemark.model import change_batch
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings import schema_policy
from lakemark.settings.schema_policy import BEHAVIORS, FOLLOWS, KINDS, Outcome, SchemaPolicy
from lakemark.sink import schema_changes
from lakemark.sink.apply import apply
from lakemark.sink.lake_plan import LakePlan, TablePlan
from lakemark.sink.resolve import Part
from lakemark.source import decoder
from lakemark.state.tables import PipelineState, TableState
from tests.kit.connector_settings import config
from tests.kit.delta_table import content
from tests.kit.documents import ROOT
from tests.kit.log_model import STEP
from tests.kit.shop import schema_of
from tests.kit.table_states import table_state
from tests.unit.sink.test_resolve_snapshots import PLACEHOLDER

pytestmark = pytest.mark.usefixtures("cache")

TABLE = "public.orders"
ENGINES = ("task-merge", "deletion-vectors")
INT, LONG, TEXT, FLOAT, DOUBLE = "int32", "int64", "string", "float", "double"
Row = dict[str, tuple[str, object]]  # by column: type and value
OLD = ({"id": (INT, 1), "v": (INT, 10)}, {"id": (INT, 2), "v": (INT, 20)})


def struct(row: Row) -> dict[str, Any]:
    fields = [{"type": t, "optional": n != "id", "field": n} for n, (t, _) in row.items()]
    return {"type": "struct", "fields": fields, "optional": True, "name": "V"}


def event(at: int, row: Row | None, key: tuple[str, ...] = ("id",)) -> tuple[bytes | None, bytes]:
    """Key and value of an insert; without a row of a truncate."""
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": at,
        "snapshot": "false", "db": "d", "ts_us": at * 1000, "schema": "public", "table": "orders",
        "lsn": 8 * at + 8, "sequence": f'["{8 * at}","{8 * at + 8}"]',
    }  # fmt: skip
    after = None if row is None else {name: value for name, (_, value) in row.items()}
    of_row = struct(row or OLD[0])
    members = [
        {**of_row, "field": "before"}, {**of_row, "field": "after"},
        {"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"},
    ]  # fmt: skip
    envelope = {"type": "struct", "fields": members, "name": "Envelope"}
    op = "t" if row is None else "c"
    payload = {"before": None, "after": after, "source": source, "op": op, "ts_ms": at}
    value = json.dumps({"schema": envelope, "payload": payload}).encode()
    if row is None:
        return None, value
    of_key = {name: row[name] for name in key}
    keyed = {"schema": struct(of_key), "payload": {n: v for n, (_, v) in of_key.items()}}
    return json.dumps(keyed).encode(), value


def keyed_parts(entries, columns) -> list[Part]:
    """Packets of plain events: op, place, number in the transaction, key, before, after, new and
    old key.
    """
    compact = partial(json.dumps, separators=(",", ":"))
    schema = schema_of(TABLE, **columns)
    keys, values, headers = [], [], []
    for op, at, number, key, before, after, new, old in entries:
        lsn = STEP * at + STEP * number
        source = {
            "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": at,
            "snapshot": "false", "db": "d", "ts_us": at * 1000, "schema": "public",
            "table": "orders", "lsn": lsn, "sequence": compact([str(STEP * at), str(lsn)]),
        }  # fmt: skip
        payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at}
        keys.append(compact({"id": key}).encode())
        values.append(compact(payload).encode())
        both = (("__debezium.newkey", new), ("__debezium.oldkey", old))
        headers.append([
            {"key": name, "value": compact({"id": k}).encode()} for name, k in both if k is not None
        ] or None)  # fmt: skip
    records = Records("shop.public.orders", 0, list(range(len(keys))), keys, values, headers)  # fmt: skip
    plan = StretchPlan(
        SourceIdentity("postgresql", "shop"), HandlingModes(), schemas={TABLE: schema},
        verified=frozenset({TABLE}),
    )  # fmt: skip
    done = decoder.decode_range(records, plan)
    assert not done.dead
    assert not done.stopped(), done.stopped()
    digest = crc32(repr(entries).encode())
    return [Part("p/0", n, packet, digest=digest + n) for n, (_, packet) in enumerate(done.packets)]


class Table:
    """A table, batch by batch."""

    def __init__(self, path: str, engine: str, policy: SchemaPolicy = FOLLOWS) -> None:
        self.path, self.engine, self.policy = path, engine, policy
        self.batch, self.at, self.key = 0, 0, ("id",)

    def put(self, *rows: Row | None, key: tuple[str, ...] = ("id",)) -> None:
        events = [event(self.at + n, row, key) for n, row in enumerate(rows, 1)]
        keys, values = map(list, zip(*events, strict=True))
        records = Records("shop.public.orders", 0, list(range(len(keys))), keys, values, [None] * len(keys))  # fmt: skip
        plan = StretchPlan(SourceIdentity("postgresql", "shop"), HandlingModes())
        done = decoder.decode_range(records, plan)
        assert not done.dead
        assert not done.stopped()
        parts = [Part("p/0", n, packet, digest=self.at + n) for n, (_, packet) in enumerate(done.packets)]  # fmt: skip
        own = TablePlan(
            self.path, engine=self.engine, key=self.key, policy=self.policy,
            written=bool(self.batch), settled=None,
        )  # fmt: skip
        outcome = apply(TABLE, parts, LakePlan("q", self.batch, "stream", lambda _: own))
        self.batch += 1
        self.at += len(rows)
        self.key = tuple(outcome.key) or self.key

    def rows(self) -> list[dict[str, Any]]:
        """By id, without what is lakemark's."""
        found = content(self.path).drop_columns(["_cdc"]).to_pylist()
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


# What comes after OLD, and what the table then is, by outcome; None = the table refuses it.
NEW: Row = {"id": (INT, 3), "v": (INT, 30)}
CHANGES: dict[str, tuple[tuple[Row | None, ...], dict[str, Any]]] = {
    "add-column": (
        ({**NEW, "w": (TEXT, "x")},),
        {
            "follow": [{"id": 1, "v": 10, "w": None}, {"id": 2, "v": 20, "w": None}, {"id": 3, "v": 30, "w": "x"}],
            "leave": [{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": 30}],
        },
    ),
    "widen-type": (
        ({"id": (INT, 3), "v": (LONG, 30)},),
        {
            "follow": [{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": 30}],
            "leave": [{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": 30}],
        },
    ),
    "truncate": (
        (None, NEW),
        {
            "follow": [{"id": 3, "v": 30}],
            "leave": [{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": 30}],
        },
    ),
}  # fmt: skip
BY_EVENTS = {
    "add-column": ("stop", "follow", "follow", "follow", "leave"),
    "widen-type": ("stop", "follow", "follow", "follow", "leave"),
    "truncate": ("stop", "follow", "follow", "follow", "leave"),
}


def policies():
    for (kind, outcomes), (at, behavior) in product(BY_EVENTS.items(), enumerate(BEHAVIORS)):
        yield kind, SchemaPolicy.of(behavior), outcomes[at]
        if behavior != "ignore":
            yield kind, SchemaPolicy.of(behavior, exclude=[kind]), "leave"
            yield kind, SchemaPolicy.of(behavior, include=[kind]), outcomes[at]
            yield kind, SchemaPolicy.of(behavior, include=[k for k in KINDS if k != kind]), "leave"


@pytest.mark.parametrize(("kind", "policy", "outcome"), list(policies()))
@pytest.mark.sampled(12)
def test_what_events_tell_of(kind, policy, outcome, engine, tmp_path):
    events, expected = CHANGES[kind]
    table = Table(str(tmp_path / "t"), engine, policy)
    table.put(*OLD)
    before = DeltaTable(table.path).version()
    if outcome == "stop":
        with pytest.raises(TableError) as caught:
            table.put(*events)
        assert caught.value.code == "schema-change-refused"
        assert kind in caught.value.message
        assert f"lake.tables.{TABLE}.schema_changes.behavior" in caught.value.hint
        assert DeltaTable(table.path).version() == before
        return
    table.put(*events)
    assert table.rows() == expected[outcome]
    kinds = {f.name: str(f.type) for f in DeltaTable(table.path).schema().fields}
    wide = kind == "widen-type" and outcome == "follow"
    assert kinds["v"].count("long") == wide


@pytest.mark.parametrize("policy", [SchemaPolicy.of(b) for b in BEHAVIORS], ids=BEHAVIORS)
@pytest.mark.sampled(3)
def test_another_type_or_key_always_stops_before_its_first_row(policy, engine, tmp_path):
    """To make the table anew is for the driver."""
    table = Table(str(tmp_path / "t"), engine, policy)
    table.put(*OLD)
    with pytest.raises(TableError) as caught:
        table.put({"id": (INT, 3), "v": (TEXT, "x")})
    assert caught.value.code == "schema-incompatible"
    with pytest.raises(TableError) as caught:
        table.put({"id": (INT, 3), "v": (INT, 30)}, key=("v",))
    assert caught.value.code == "key-changed"


@pytest.mark.parametrize("policy", [SchemaPolicy.of(b) for b in BEHAVIORS], ids=BEHAVIORS)
@pytest.mark.sampled(3)
def test_a_column_that_events_have_no_more_stays_and_is_null_in_new_rows(policy, engine, tmp_path):
    table = Table(str(tmp_path / "t"), engine, policy)
    table.put(*OLD)
    table.put({"id": (INT, 3)})
    assert table.rows() == [{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": None}]


@pytest.mark.parametrize(
    ("old", "new", "fits", "value"),
    [
        ((INT, 1), LONG, 2**31 - 1, 2**31),
        ((FLOAT, 0.5), DOUBLE, 0.25, 0.1),
        ((FLOAT, 0.5), DOUBLE, "Infinity", 1e300),
    ],
)
def test_a_value_that_the_kept_type_cannot_hold_stops_the_table(old, new, fits, value, engine, tmp_path):  # fmt: skip
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("ignore"))
    table.put({"id": (INT, 1), "v": old})
    table.put({"id": (INT, 2), "v": (new, fits)}, {"id": (INT, 3), "v": (new, None)})
    assert [row["v"] for row in table.rows()] == [old[1], float(fits), None]
    version = DeltaTable(table.path).version()
    with pytest.raises(TableError) as caught:
        table.put({"id": (INT, 4), "v": (new, value)})
    assert caught.value.code == "schema-change-refused"
    assert "'v'" in caught.value.message
    assert DeltaTable(table.path).version() == version


def test_a_nan_fits(engine, tmp_path):
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("ignore"))
    table.put({"id": (INT, 1), "v": (FLOAT, 0.5)})
    table.put({"id": (INT, 2), "v": (DOUBLE, "NaN")})
    assert [str(row["v"]) for row in table.rows()] == ["0.5", "nan"]


def test_a_new_column_and_a_wider_type_at_once(engine, tmp_path):
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("ignore"))
    table.put(*OLD)
    table.put({**NEW, "w": (TEXT, "x")}, {"id": (INT, 1), "v": (LONG, 11), "w": (TEXT, "y")})
    assert table.rows() == [{"id": 1, "v": 11}, {"id": 2, "v": 20}, {"id": 3, "v": 30}]


@pytest.mark.parametrize("behavior", BEHAVIORS)
@pytest.mark.sampled(3)
def test_a_snapshot_s_sweep_removes_rows_whatever_the_policy_says_of_truncates(behavior, engine, tmp_path):  # fmt: skip
    """It is no change of the source: those rows are not there."""
    for policy in (SchemaPolicy.of(behavior), SchemaPolicy.of(behavior, exclude=["truncate"])):
        path = str(tmp_path / behavior / str(len(policy.exclude)))
        table = Table(path, engine, policy)
        table.put(*OLD)
        swept = change_batch.truncates([lsns.pack(0, 8 * 1000, 8 * 1000)], table=TABLE)
        own = TablePlan(path, engine=engine, key=("id",), policy=policy, written=True)
        parts = [Part("sweep/r1", 0, swept, digest=99)]
        apply(TABLE, parts, LakePlan("q", table.batch, "stream", lambda _, own=own: own))
        assert table.rows() == []


def test_a_batch_that_comes_again_under_another_policy_is_another_one(engine, tmp_path):
    """As after a crash between its commit and its state, and a restart with other settings."""
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("ignore"))
    table.put(*OLD)
    table.put(None, NEW)
    assert len(table.rows()) == 3
    table.batch, table.at, table.policy = table.batch - 1, table.at - 2, FOLLOWS
    table.put(None, NEW)
    assert table.rows() == [{"id": 3, "v": 30}]


def test_what_waits_beside_a_table_keeps_columns_that_the_source_has_no_more():
    rows = pa.array([{"id": 1, "gone": "g", "new": "n", "v": 5}, None])
    rows = rows.cast(pa.struct([("id", pa.int64()), ("gone", pa.string()), ("new", pa.string()), ("v", pa.int64())]))  # fmt: skip
    schema = pa.schema([("id", pa.int64()), ("v", pa.int32())])
    names = pa.array([["new", "gone"], ["new"]], change_batch.NAMES)
    packet = pa.table(
        {"row": rows, "unavailable": names, "missing": pa.nulls(2, change_batch.NAMES)}
    )
    found = schema_changes.narrowed(packet, {"new"}, schema, TABLE)
    assert found.column("row").to_pylist() == [{"id": 1, "gone": "g", "v": 5}, None]
    assert found.schema.field("row").type.field("v").type == pa.int32()
    assert found.column("unavailable").to_pylist() == [["gone"], None]
    assert found.column("missing").to_pylist() == [None, None]


# -- what is left out is nowhere in the way: key changes, values that events lack -------------------

WIDE = {"id": "int8", "v": "int8", "t": "text", "w": "text"}
HISTORIES = {
    # UPDATE t SET id = id + 1 under a deferrable key and REPLICA IDENTITY FULL
    "shift": [(1, 2), (2, 3), (3, 4)],
    "swap": [(1, 2), (2, 1)],
    "moves": [(1, 7), (3, 8)],
}


def moved(steps, first):
    """Entries of one transaction in which rows take other keys."""
    found = []
    for number, (old, new) in enumerate(steps):
        before = {"id": old, "v": 10 * old, "t": f"t{old}", "w": f"w{old}"}
        after = {**before, "id": new}
        found.append(("d", first, number, old, before, None, new, None))
        found.append(("c", first, number, new, None, after, None, old))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rows_that_change_their_keys_are_the_same_with_columns_left_out(name, deletes, engine, tmp_path):  # fmt: skip
    def run(policy):
        path = str(tmp_path / policy.behavior)
        batches = [
            [("c", 100 + n, 0, n, None, {"id": n, "v": 10 * n, "t": f"t{n}"}, None, None) for n in (1, 2, 3)],
            [("u", 200 + n, 0, n, {"id": n, "v": 10 * n, "t": f"t{n}", "w": None},
              {"id": n, "v": 10 * n, "t": f"t{n}", "w": f"w{n}"}, None, None) for n in (1, 2, 3)],
            moved(HISTORIES[name], 300),
            [("u", 400, 0, 9, None, {"id": 9, "v": 90, "t": PLACEHOLDER, "w": "w9"}, None, None)],
        ]  # fmt: skip
        for number, entries in enumerate(batches):
            columns = {**WIDE, "v": "int8" if number else "int4"}
            if not number:
                del columns["w"]
            found = keyed_parts(entries, columns)
            own = TablePlan(path, deletes=deletes, engine=engine, key=("id",), policy=policy,
                            written=bool(number), partial=True, stale=frozenset())  # fmt: skip
            apply(TABLE, found, LakePlan("q", number, "stream", lambda _, own=own: own))
        rows = content(path).to_pylist()
        live = [row for row in rows if not row["_cdc"].get("deleted")]
        return sorted((row["id"], row["v"], row["t"]) for row in live), live[0].keys()

    whole, columns = run(SchemaPolicy.of("lenient"))
    left, kept = run(SchemaPolicy.of("ignore"))
    assert left == whole
    assert {*columns} - {*kept} == {"w"}
    assert len(whole) == 4


def test_a_key_that_the_kept_type_cannot_hold_stops_the_table_by_name(engine, tmp_path):
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("ignore"))
    table.put(*OLD)
    with pytest.raises(TableError) as caught:
        table.put({"id": (LONG, 2**40), "v": (INT, 1)})
    assert caught.value.code == "schema-change-refused"
    assert "widen-type in include" in caught.value.hint


def test_what_was_left_out_comes_when_the_policy_is_another_one(engine, tmp_path):
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("ignore"))
    table.put(*OLD)
    table.put({**NEW, "w": (TEXT, "x")})
    table.policy = FOLLOWS
    table.put({"id": (INT, 1), "v": (LONG, 2**40), "w": (TEXT, "y")})
    assert table.rows() == [
        {"id": 1, "v": 2**40, "w": "y"},
        {"id": 2, "v": 20, "w": None},
        {"id": 3, "v": 30, "w": None},
    ]


def test_the_first_rows_are_no_change(engine, tmp_path):
    table = Table(str(tmp_path / "t"), engine, SchemaPolicy.of("exception"))
    table.put(*OLD, NEW)
    table.put({"id": (INT, 1), "v": (INT, 11)})
    assert [row["v"] for row in table.rows()] == [11, 20, 30]


def test_the_plan_of_a_batch_has_each_table_s_policy_but_while_it_is_made(tmp_path):
    own = {"public.b": {"schema_changes": {"behavior": "ignore"}}}
    lake = {"path": str(tmp_path / "lake"), "schema_changes": {"behavior": "evolve"}, "tables": own}
    shop = config(lake=lake, checkpoint=str(tmp_path / "c"))
    state = PipelineState(
        tables={
            "public.a": TableState(),
            "public.b": TableState(),
            "public.c": table_state(rebuild="rebuild-c-1"),
        }
    )
    plan = plans.lake_plan(shop, state, query="q", step="stream", applied={})
    assert plan.tables["public.a"].policy == SchemaPolicy.of("evolve")
    assert plan.tables["public.b"].policy == SchemaPolicy.of("ignore")
    assert plan.tables["public.c"].policy == FOLLOWS
    state.tables.clear()
    plan = plans.lake_plan(shop, state, query="q", step="stream", applied={})
    assert plan.new_table("public.b").policy == SchemaPolicy.of("ignore")


# -- the table of the docs ------------------------------------------------------------------------

_WORDS = {
    "stops": Outcome.STOP,
    "follows": Outcome.FOLLOW,
    "rebuilt": Outcome.REBUILD,
    "stays": Outcome.LEAVE,
}


def test_the_docs_say_what_is_done():
    said = {}
    for line in (ROOT / "docs/schema-changes.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].strip("`") in KINDS and len(cells) == 1 + len(BEHAVIORS):
            said[cells[0].strip("`")] = tuple(_WORDS[cell.split()[0]] for cell in cells[1:])
    assert list(said) == list(KINDS)
    for kind, outcomes in said.items():
        assert outcomes == tuple(SchemaPolicy.of(b).outcome(kind) for b in BEHAVIORS), kind


def test_where_a_table_cannot_be_made_anew_evolve_stops_and_try_evolve_is_lenient():
    for kind, behavior in product(KINDS, BEHAVIORS):
        policy = SchemaPolicy.of(behavior)
        found = policy.outcome(kind, can_rebuild=False)
        if policy.outcome(kind) is not Outcome.REBUILD:
            assert found is policy.outcome(kind)
        elif behavior == "try_evolve" and kind in {"drop-column", "rename-column"}:
            assert found is SchemaPolicy.of("lenient").outcome(kind)
        else:
            assert found is Outcome.STOP


def test_excluded_wins_over_included():
    both = SchemaPolicy.of("exception", include=["truncate"], exclude=["truncate"])
    assert both.outcome("truncate") is Outcome.LEAVE
    assert schema_policy.FOLLOWS.outcome("truncate") is Outcome.FOLLOW
