"""What every `Converter` promises. The test module of one inherits `ConverterContract`.

Records are told as Python has them, with values that any form can hold: whole numbers, texts,
booleans, doubles and nulls. How they are written says the inheriting class.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.converter import (
    OUT_OF_RANGE,
    OWN,
    WRONG_TYPE,
    Converter,
    Moment,
    whole,
)
from lakemark.converters.registry import CONVERTERS, SIDES
from lakemark.errors import TableError
from lakemark.model.columns import Column
from lakemark.model.decoding import (
    ConverterChoice,
    ConverterOptions,
    Options,
    Records,
    StretchPlan,
)
from lakemark.model.events import NOTHING_LEARNT, Headers, Kind, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.model.schema import TableSchema
from lakemark.source import decoder
from lakemark.source.fetch import HEADERS, SCHEMA

TABLE = "public.orders"
TOPIC = "shop.public.orders"
SIGNALS = "public.signals"
IDENTITY = SourceIdentity("postgresql", "shop", SIGNALS)
MODES = HandlingModes()
PLACEHOLDER = MODES.placeholder_text
COLUMNS = (
    Column("id", pa.int32(), wire="int32"),
    Column("part", pa.string()),
    Column("n", pa.int64(), wire="int64"),
    Column("text", pa.string()),
    Column("flag", pa.bool_(), wire="boolean"),
    Column("ratio", pa.float64(), wire="double"),
)
ORDERS = TableSchema(TABLE, COLUMNS, ("id", "part"))
ROW = {"id": 7, "part": 'ä"\\', "n": -(1 << 62), "text": "x\n\u2028", "flag": True, "ratio": 0.5}

Row = Mapping[str, Any]

# Several classes inherit a test; what one has failed at, the others then try first, too.
SHARED = settings(
    suppress_health_check=[
        *settings.default.suppress_health_check,
        HealthCheck.differing_executors,
    ]
)

ids = st.integers(-(1 << 31), (1 << 31) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
rows_of_orders = st.fixed_dictionaries({
    "id": ids,
    "part": texts,
    "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    "text": st.none() | texts,
    "flag": st.none() | st.booleans(),
    "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
})  # fmt: skip


def source(at: int = 5, **told: Any) -> dict[str, Any]:
    """A source block at a place of the log."""
    lsn = 8 * at
    return {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": at,
        "snapshot": "false", "db": "shop", "sequence": f'["{lsn}","{lsn}"]', "ts_us": at * 1000,
        "schema": "public", "table": "orders", "txId": 1, "lsn": lsn, "xmin": None, **told,
    }  # fmt: skip


def by_key(found):
    """Rows of all packets with their tables, in the order of their keys."""
    rows = [(table, row) for table, packet in found.packets for row in packet.to_pylist()]
    return sorted(rows, key=lambda named: (named[0], named[1]["key"]))


class ConverterContract:
    """A subclass says what its converter is called and how its records are written.

    Attributes:
        name: of the converter.
        own: our settings that it cannot do without.
    """

    name: str
    own: Options = ()

    @abstractmethod
    def value(self, event: Mapping[str, Any] | None) -> bytes:
        """A record's value: an envelope, or null."""

    @abstractmethod
    def key(self, row: Row) -> bytes:
        """A record's key of these columns, in this order."""

    @property
    def converter(self) -> Converter:
        return CONVERTERS[self.name]

    @property
    def plan(self) -> StretchPlan:
        return StretchPlan(
            IDENTITY, MODES, {TABLE: ORDERS}, epoch=3, converter=ConverterChoice(self.name)
        )

    def event(self, op: str, before: Row | None, after: Row | None, **told: Any) -> bytes:
        block = source(**told)
        return self.value({"before": before, "after": after, "source": block, "op": op})

    def headers(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> Headers:
        given = keys or [self.key({"id": 7, "part": "a"})] * len(values)
        count = len(values)
        records = Records(TOPIC, 0, list(range(count)), [*given], [*values], [None] * count)
        return self.converter.headers(records, self.plan)

    def image(self, row: Row) -> bytes:
        """A row's image, as an event brings it."""
        (found,) = self.headers([self.event("c", None, row)]).after
        assert found is not None
        return found

    # -- what it is told ------------------------------------------------------------------------

    @pytest.mark.parametrize("described", [True, False])
    def test_options_make_another_of_its_kind(self, described):
        value = self.event("c", None, {"id": 7, "part": "a"})
        records = Records(TOPIC, 0, [0], [self.key({"id": 7, "part": "a"})], [value], [None])
        unknown = (("no.such.option", "x"), ("other", "${file:x}"))
        for told in (None, (), unknown):
            made = self.converter.of(ConverterOptions(told, told, (*self.own, *unknown)))
            assert type(made) is type(self.converter)
            assert made.java_classes == self.converter.java_classes
            assert made.headers(records, self.plan) == self.converter.headers(records, self.plan)
            problems = [*made.problems(described=described)]
            assert all(p.path.startswith(("key.", "value.", OWN)) for p in problems)
            assert not [p for p in problems if not p.warning and described]
            for side in SIDES:
                carries = made.carries_schemas(side)
                assert carries in {None, True, False}
                assert made.without_schemas or not carries

    # -- what a record is -----------------------------------------------------------------------

    def test_each_record_is_what_it_says(self):
        changes = dict.fromkeys("cu", Kind.CHANGE)
        for op, kind in {**changes, "r": Kind.INCREMENTAL}.items():
            heads = self.headers([self.event(op, None, ROW, at=9)])
            assert (heads.kind, heads.op, heads.table) == ([kind], [op], [TABLE])
            assert heads.position == [lsns.pack(3, 72, 72)]
            assert (heads.source_ts, heads.snapshot) == ([9000], ["false"])
            assert (heads.before, heads.reason, heads.detail) == ([None], [None], [None])
            assert heads.after[0] is not None
        heads = self.headers([self.event("d", ROW, None)])
        assert (heads.kind, heads.after) == ([Kind.CHANGE], [None])
        assert heads.before[0] is not None
        told = {
            Kind.OWN_SNAPSHOT: self.event("r", None, ROW, snapshot="true"),
            Kind.TRUNCATE: self.event("t", None, None),
            Kind.SIGNAL: self.event("c", None, ROW, table="signals"),
            Kind.MESSAGE: self.event("m", None, None, table="", schema=""),
            Kind.TOMBSTONE: None,
        }
        assert self.headers([*told.values()]).kind == [*told]
        assert self.headers([b"", self.value(None)]).kind == [Kind.TOMBSTONE] * 2

    def test_a_table_has_the_text_of_its_name(self):
        events = [self.event("c", None, ROW, schema="a.b"), self.event("c", None, ROW, table="b.c")]
        assert self.headers(events).table == ['"a.b".orders', 'public."b.c"']

    def test_what_is_no_record_of_the_connector_is_bad_and_says_why(self):
        told = {
            "foreign-connector": self.event("c", None, ROW, connector="mysql"),
            "unknown-op": self.event("x", None, ROW),
            "missing-image": self.event("c", None, None),
            "missing-position": self.event("c", None, ROW, sequence=None, lsn=None),
            "not-debezium": self.event("c", None, ROW, table=None),
        }
        heads = self.headers([*told.values()])
        assert heads.reason == [*told]
        assert heads.kind == [Kind.BAD] * len(told)
        assert all(heads.detail)
        other = self.headers([self.event("c", None, ROW, name="other")])
        assert other.reason == ["foreign-connector"]
        keyless = self.headers([self.event("d", None, None)], [None])
        assert keyless.reason == ["missing-image"]

    def test_a_value_that_is_too_large_is_not_read(self):
        value = self.event("c", None, ROW)
        records = Records(TOPIC, 0, [0], [None], [value], [None])
        plan = replace(self.plan, max_event_bytes=len(value) - 1)
        heads = self.converter.headers(records, plan)
        assert (heads.kind, heads.reason) == ([Kind.BAD], ["record-too-large"])

    @SHARED
    @given(st.data())
    def test_no_bytes_raise_anything(self, data):
        values = [self._bytes(data, self.event("u", ROW, ROW)) for _ in range(3)]
        keys = [self._bytes(data, self.key({"id": 7, "part": "a"})) for _ in range(3)]
        heads = self.headers(values, keys)
        for name in {*Headers.__slots__} - {"statements", "keys", "schema_ids"}:
            assert len(getattr(heads, name)) == 3, name
        assert heads.statements.keys() | heads.keys.keys() <= {0, 1, 2}
        for kind, reason in zip(heads.kind, heads.reason, strict=True):
            assert (kind == Kind.BAD) == (reason is not None)
        converter = self.converter
        images = [one for one in (*heads.before, *heads.after) if one is not None]
        for image in (*images, *values, *keys):
            converter.columns_of(image)
            assert len(converter.first_cells(image, 2)) <= 2
        images += [*map(converter.key_image, keys), *values]
        found = converter.rows(images, ORDERS, MODES, partial=range(len(images)))
        assert len(found.columns) == len(found.unavailable) == len(images)
        found.columns.validate(full=True)
        assert {code for _, code, _ in found.bad} <= {WRONG_TYPE, OUT_OF_RANGE}
        assert converter.suspects(images, ORDERS, MODES) <= set(range(len(images)))
        for schema in (None, ORDERS):
            assert len(converter.canonical_keys(keys, schema)) == 3
        for key in keys:
            converter.key_names(key)
            converter.out_of_range(key, ORDERS)

    def _bytes(self, data: st.DataObject, valid: bytes) -> bytes:
        """Some bytes, most of them those of a record with a few changed."""
        if data.draw(st.booleans()):
            return data.draw(st.binary(max_size=20))
        found = bytearray(valid)
        for _ in range(data.draw(st.integers(0, 3))):
            found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
        return bytes(found[: data.draw(st.none() | st.integers(0, len(found)))])

    # -- keys -----------------------------------------------------------------------------------

    @SHARED
    @given(st.lists(rows_of_orders, min_size=1, max_size=5))
    def test_keys_are_those_of_typed_columns(self, rows):
        """In any order of their members: a chunk's row, the lake's and an event's meet by them."""
        columns = [pa.array([row[n] for row in rows], ORDERS.column(n).type) for n in ORDERS.key]
        expected = canonical_from_columns(columns, [ORDERS.column(n) for n in ORDERS.key])
        for names in (("id", "part"), ("part", "id")):
            keys = [self.key({name: row[name] for name in names}) for row in rows]
            assert self.converter.canonical_keys(keys, ORDERS) == expected.to_pylist()

    def test_keys_without_a_schema_are_taken_as_they_are(self):
        key = self.key({"b": 7, "a": "x", "c": None})
        assert self.converter.canonical_keys([key], None) == [b'[7,"x",null]']
        assert self.converter.key_names(key) == ("b", "a", "c")

    def test_a_key_that_says_no_row_is_none(self):
        keys = [
            None,
            b"",
            self.key({"id": 7}),
            self.key({"id": "x", "part": "a"}),
            self.value(None),
        ]
        assert self.converter.canonical_keys(keys, ORDERS) == [None] * len(keys)
        null = self.key({"id": 7, "part": None})
        assert self.converter.canonical_keys([null], ORDERS) == [b"[7,null]"], "a null is a value"

    def test_a_key_is_an_image_of_its_columns(self):
        image = self.converter.key_image(self.key({"id": 7, "part": "a"}))
        (row,) = self.converter.rows([image], ORDERS, MODES).columns.to_pylist()
        assert {n: v for n, v in row.items() if v is not None} == {"id": 7, "part": "a"}
        assert self.converter.columns_of(image) == {"id", "part"}
        assert self.converter.columns_of(None) == frozenset()

    # -- rows -----------------------------------------------------------------------------------

    @SHARED
    @given(st.lists(rows_of_orders, max_size=5))
    def test_rows_have_the_values_and_types_of_their_schema(self, rows):
        found = self.converter.rows([self.image(row) for row in rows], ORDERS, MODES)
        assert found.columns.type == pa.struct(list(ORDERS.arrow()))
        assert found.columns.to_pylist() == rows
        assert (found.bad, found.unknown, found.clamped) == ([], set(), 0)
        assert found.unavailable == [None] * len(rows)

    def test_null_and_absent_are_null_and_what_is_unknown_is_named(self):
        images = [self.image({**ROW, "n": None, "more": 1}), self.image({"id": 7, "part": "a"})]
        found = self.converter.rows(images, ORDERS, MODES)
        assert found.columns.field("n").to_pylist() == [None, None]
        assert (found.unknown, found.bad) == ({"more"}, [])
        assert self.converter.columns_of(images[1]) == {"id", "part"}

    def test_a_value_that_cannot_be_read_makes_its_row_bad_and_no_other(self):
        images = [
            self.image(row)
            for row in (ROW, {**ROW, "id": "secret"}, {**ROW, "id": 1 << 40}, {**ROW, "flag": 5})
        ]
        found = self.converter.rows(images, ORDERS, MODES)
        assert [(at, code) for at, code, _ in found.bad] == [
            (1, WRONG_TYPE), (2, OUT_OF_RANGE), (3, WRONG_TYPE),
        ]  # fmt: skip
        assert not any("secret" in message or str(1 << 40) in message for *_, message in found.bad)
        assert found.columns.to_pylist() == [ROW, None, None, None]

    def test_a_placeholder_is_unavailable_only_where_it_may_be(self):
        """Never in a key, and in no image of which it is not said."""
        row = {**ROW, "part": PLACEHOLDER, "text": PLACEHOLDER}
        images = [self.image(row), self.image(row), self.image(ROW)]
        found = self.converter.rows(images, ORDERS, MODES, partial=[0])
        assert found.unavailable == [("text",), None, None]
        assert found.columns.to_pylist() == [{**row, "text": None}, row, ROW]
        assert {0, 1} <= self.converter.suspects(images, ORDERS, MODES)
        assert self.converter.suspects([self.image(ROW)], ORDERS, MODES) == set()

    def test_an_old_value_that_is_shown_says_that_the_new_one_is_no_placeholder(self):
        row, other = {**ROW, "text": PLACEHOLDER}, {**ROW, "text": None}
        afters, befores = [self.image(row)] * 2, [self.image(ROW), self.image(other)]
        assert whole(self.converter, afters, befores, ORDERS, MODES) == {0}

    def test_the_first_cells_come_by_place(self):
        row = {"a": "x-open", "b": "snapshot-window-open", "c": "{}", "d": 5}
        assert self.converter.first_cells(self.image(row), 3) == ["x-open", row["b"], "{}"]
        assert self.converter.first_cells(b"", 3) == []

    # -- the faster way -------------------------------------------------------------------------

    @SHARED
    @given(st.lists(st.tuples(st.sampled_from("cud"), rows_of_orders), min_size=1, max_size=6))
    def test_the_faster_way_says_what_the_general_one_does(self, events):
        keys = [self.key({name: row[name] for name in ORDERS.key}) for _, row in events]
        values = [
            self.event(op, row if op == "d" else None, None if op == "d" else row, at=at)
            for at, (op, row) in enumerate(events, 5)
        ]
        count = len(events)
        columns = [[TOPIC] * count, [0] * count, range(count), keys, values, [None] * count]
        types = [SCHEMA.field(at).type for at in range(5)]
        arrays = [pa.array(c, t) for c, t in zip(columns, [*types, HEADERS], strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        quick = self.converter.plain_range(TOPIC, 0, [batch], self.plan)
        if quick is not None:
            records = Records(TOPIC, 0, list(range(count)), keys, values, [None] * count)
            general = decoder.decode_range(records, self.plan)
            assert by_key(quick) == by_key(general)  # the general way may have two packets
            assert quick.applied_position == general.applied_position

    # -- writing --------------------------------------------------------------------------------

    @SHARED
    @given(st.lists(rows_of_orders, min_size=1, max_size=4))
    def test_what_is_written_is_read_as_it_was(self, rows):
        seen = self.headers([self.event("u", None, ROW)])
        records = Records(TOPIC, 0, [0], [self.key(ROW)], [self.event("u", None, ROW)], [None])
        learnt = self.converter.learn(records, seen)
        writer = self.converter.writer(TABLE, ORDERS, MODES, learnt=learnt, wrapped=False)
        typed = pa.array(rows, pa.struct(list(ORDERS.arrow())))
        moment = Moment(lsns.pack(3, 800, 808), 5_000_000, 9_000_000)
        keys, values = writer.reads(typed, moment)
        heads = self.headers(values, keys)
        images = [image or b"" for image in heads.after]
        assert heads.kind == [Kind.INCREMENTAL] * len(rows)
        assert (set(heads.position), set(heads.table)) == ({moment.position}, {TABLE})
        assert (set(heads.source_ts), set(heads.snapshot)) == ({5000}, {"incremental"})
        assert self.converter.rows(images, ORDERS, MODES).columns.to_pylist() == rows
        canonical = [self.converter.canonical_keys([self.key(row)], ORDERS)[0] for row in (
            {name: row[name] for name in ORDERS.key} for row in rows
        )]  # fmt: skip
        assert self.converter.canonical_keys(keys, ORDERS) == canonical
        keys, values = writer.removals(typed, moment)
        heads = self.headers(values, keys)
        assert (heads.op, heads.kind) == (["d"] * len(rows), [Kind.CHANGE] * len(rows))
        assert heads.after == [None] * len(rows)
        assert self.converter.canonical_keys(keys, ORDERS) == canonical

    def test_without_an_event_nobody_knows_how_to_write(self):
        records = Records(TOPIC, 0, [0], [None], [None], [None])
        learnt = self.converter.learn(records, self.headers([None]))
        assert learnt == NOTHING_LEARNT
        with pytest.raises(TableError) as caught:
            self.converter.writer(TABLE, ORDERS, MODES, learnt=learnt, wrapped=False)
        assert caught.value.code == "output-not-ready"

    def test_values_are_put_into_an_event_and_all_else_stays(self):
        old, new = {**ROW, "text": PLACEHOLDER, "n": 5}, {**ROW, "text": "known", "n": 5}
        known = self.converter.cells(self.image(new))
        assert list(known) == list(ROW)
        typed = {"text": pa.array(["known"]), "n": pa.array([5])}
        written = self.converter.cells_of(typed, ORDERS, MODES)
        for cells in (known, {name: found[0] for name, found in written.items()}):
            given = {"text": cells["text"]}
            value = self.converter.with_cells(self.event("u", ROW, old, at=9), given)
            assert self.headers([value]) == self.headers([self.event("u", ROW, new, at=9)])
        for event in (self.event("d", ROW, None), self.event("u", None, {"id": 7})):
            with pytest.raises(ValueError, match=r"."):
                self.converter.with_cells(event, {"text": known["text"]})
