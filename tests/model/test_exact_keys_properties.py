"""Keys that differ in the database differ in the lake, or are refused by name; log and chunk agree."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.connectors.postgres.column_sql import cell
from lakemark.connectors.postgres.key_sql import key_texts
from lakemark.connectors.postgres.postgres_chunks import _parsed
from lakemark.connectors.typed_rows import typed_rows
from lakemark.converters.json.keys import canonical_keys, out_of_range
from lakemark.errors import TableError
from lakemark.model import civil
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns, check_ends, key_ends, stored
from tests.kit.handling_modes import MODES
from tests.kit.nightly import examples

TABLE = "public.t"
LATE, EARLY = "infinity", "-infinity"
INT64 = 1 << 63
# The ends of PostgreSQL's calendar, in days and in microseconds.
FIRST_DATE, LAST_DATE = -2_440_588, 2_145_042_905
FIRST_TIME, LAST_TIME = FIRST_DATE * civil.DAY, 9_224_318_015_999_999_999
# What Java's nanoseconds hold, in microseconds.
LEAST_NANOS, MOST_NANOS = -9_223_372_036_854_775, 9_223_372_036_854_775


def calendar(days):
    """Year (0 is 1 BC), month and day."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def clock(micros):
    """Hours to seconds, and the microseconds left."""
    seconds, rest = divmod(micros % civil.DAY, 1_000_000)
    return seconds // 3600, seconds // 60 % 60, seconds % 60, rest


def pg_text(value, unit, zone=""):
    """As PostgreSQL writes a date (unit a day) or a timestamp."""
    if value in (LATE, EARLY):
        return value
    year, month, day = calendar(value if unit == civil.DAY else value // civil.DAY)
    text = f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}"
    if unit != civil.DAY:
        hour, minute, second, rest = clock(value)
        text += f" {hour:02d}:{minute:02d}:{second:02d}"
        text += f".{rest:06d}".rstrip("0") if rest else ""
    return text + zone + ("" if year > 0 else " BC")


def iso(value, unit):
    """As Java writes it."""
    year, month, day = calendar(value if unit == civil.DAY else value // civil.DAY)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    text = f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"
    if unit == civil.DAY:
        return text + "Z"
    hour, minute, second, rest = clock(value)
    return f"{text}T{hour:02d}:{minute:02d}:{second:02d}" + (f".{rest:06d}Z" if rest else "Z")


def parts(value, unit):
    """As the connector writes it in pieces."""
    if value in (LATE, EARLY):
        return {"specialValue": "POSITIVE_INFINITY" if value == LATE else "NEGATIVE_INFINITY"}
    year, month, day = calendar(value if unit == civil.DAY else value // civil.DAY)
    found = {"year": year, "month": month, "day": day, "specialValue": None}
    if unit != civil.DAY:
        hour, minute, second, rest = clock(value)
        found |= {"hour": hour, "minute": minute, "second": second, "nanos": rest * 1000}
    return found


def worded(late, early, finite):
    """Writes infinities so, and what is finite by a function."""
    return lambda value: {LATE: late, EARLY: early}.get(value) or finite(value)


DATES, TIMES, MILLIS = (
    (FIRST_DATE, LAST_DATE, 1),
    (FIRST_TIME, LAST_TIME, 1),
    (FIRST_TIME, LAST_TIME, 1000),
)
MICROS, NANOS = (FIRST_TIME, INT64 // 1000 * 999, 1), (LEAST_NANOS, MOST_NANOS, 1)
# A column: SQL type and modifier, time.precision.mode, least, greatest and step of what the
# connector can carry, and how it writes that.
KINDS = {
    "date": ("date", -1, "adaptive", DATES, worded(2146033979, -2147472691, int)),
    "date of a snapshot": ("date", -1, "adaptive", DATES, worded(-622191234, -625821272, int)),
    "date iso": ("date", -1, "isostring", DATES, worded("+5877611-06-21Z", "-5877611-06-22Z", lambda v: iso(v, civil.DAY))),
    "date iso of a snapshot": ("date", -1, "isostring", DATES, worded("+292278994-08-16Z", "+292269055-12-02Z", lambda v: iso(v, civil.DAY))),
    "date in pieces": ("date", -1, "structured", DATES, lambda v: parts(v, civil.DAY)),
    "timestamp": ("timestamp", -1, "adaptive", MICROS, worded(INT64 - 1, -INT64, int)),
    "timestamp(3)": ("timestamp", 3, "adaptive", MILLIS, worded(9223372036825200000, -9223372036832400000, lambda v: v // 1000)),
    "timestamp(3) connect": ("timestamp", 3, "connect", MILLIS, worded(9223372036825200000, -9223372036832400000, lambda v: v // 1000)),
    "timestamp nanos": ("timestamp", -1, "nanoseconds", NANOS, worded(INT64 - 1, -INT64, lambda v: v * 1000)),
    "timestamp iso": ("timestamp", -1, "isostring", TIMES, worded("+292278994-08-16T23:00:00Z", "-292275055-05-16T23:00:00Z", lambda v: iso(v, 1))),
    "timestamp in pieces": ("timestamp", -1, "structured", TIMES, lambda v: parts(v, 1)),
    "timestamptz": ("timestamptz", -1, "adaptive", TIMES, worded(LATE, EARLY, lambda v: iso(v, 1))),
    "timestamptz in pieces": ("timestamptz", -1, "structured", TIMES, lambda v: parts(v, 1)),
}  # fmt: skip


class Kind:
    """A type of key columns, as one mode of the connector writes it."""

    def __init__(self, name):
        self.type, typmod, precision, (self.least, self.most, self.step), self.write = KINDS[name]
        self.unit = civil.DAY if self.type == "date" else 1
        self.modes = HandlingModes(time_precision=precision)
        self.typmod = typmod
        self.first, self.last = (
            (civil.FIRST_DAY, civil.LAST_DAY)
            if self.type == "date"
            else (civil.FIRST_MICRO, civil.LAST_MICRO)
        )

    def columns(self, *names):
        return [
            CatalogColumn(name, self.type, self.typmod, key_position=at)
            for at, name in enumerate(names, 1)
        ]

    def values(self):
        ends = [self.first, self.first - 1, self.last, self.last + 1, 0, self.least, self.most]
        steps = [end - end % self.step for end in ends]
        usual = st.integers(-(-self.least // self.step), self.most // self.step)
        return (
            st.sampled_from([LATE, EARLY])
            | st.sampled_from([one for one in steps if self.least <= one <= self.most])
            | usual.map(lambda n: n * self.step)
        )

    def fits(self, value):
        return value in (LATE, EARLY) or self.first <= value <= self.last

    def text(self, value):
        return pg_text(value, self.unit, "+00" if self.type == "timestamptz" else "")


def by_chunk(columns, modes, rows):
    """Keys of rows as a chunk reads them, from what PostgreSQL writes."""
    names = [c.name for c in columns if c.key_position]
    schema = from_catalog(TABLE, columns, names, modes)
    cells = tuple(cell(c, t, modes) for c, t in zip(columns, schema.columns, strict=True))
    quoted = [",".join('"' + t.replace('"', '""') + '"' for t in row) for row in rows]
    data = "".join(f"{line}\n" for line in quoted).encode()
    chunk = typed_rows(schema, cells, _parsed(pa.py_buffer(data), 1000, len(columns)), None)
    return schema, chunk


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=examples(12, nightly=250), deadline=None)
@pytest.mark.sampled(4)
def test_moments_are_exact_or_refused(name, data):
    kind = Kind(name)
    values = data.draw(st.lists(kind.values(), min_size=1, max_size=6, unique=True))
    columns = kind.columns("k")
    schema = from_catalog(TABLE, columns, ["k"], kind.modes)
    assert schema.key_fault(kind.modes) is None
    raw = [json.dumps({"k": kind.write(value)}).encode() for value in values]
    found = canonical_keys(raw, schema)
    for value, one, key in zip(values, raw, found, strict=True):
        refused = out_of_range(one, schema) if key is None else None
        assert (key is None, refused) == (not kind.fits(value), refused and schema.columns[0])
        assert key is not None or refused is not None
    if None in found:
        with pytest.raises(TableError) as caught:
            by_chunk(columns, kind.modes, [[kind.text(value)] for value in values])
        assert caught.value.code == "key-out-of-range"
    kept = [value for value in values if kind.fits(value)]
    keys = [key for key in found if key is not None]
    assert len(set(keys)) == len(keys)
    if kept:
        _, chunk = by_chunk(columns, kind.modes, [[kind.text(value)] for value in kept])
        assert chunk.keys.to_pylist() == keys
        told_apart(chunk, keys)


def told_apart(chunk, keys):
    """The lake's rows, which are clamped: each key has its own, or the table stops."""
    columns = [chunk.schema.column(name) for name in chunk.schema.key]
    lake = canonical_from_columns([chunk.rows.column(c.name) for c in columns], columns)
    types = {c.name: c.type for c in columns}
    assert lake.to_pylist() == [stored(key, list(types.values())) for key in keys]
    ends = key_ends([pa.chunked_array([keys], pa.binary())], types)
    apart = len(set(lake.to_pylist())) == len(keys)
    if apart:
        check_ends(TABLE, "/lake/t", ends, types)
    else:
        with pytest.raises(TableError) as caught:
            check_ends(TABLE, "/lake/t", ends, types)
        assert caught.value.code == "key-ambiguous"


@given(data=st.data(), texts=st.lists(st.sampled_from([LATE, "2932896", ',"infinity",', "a"])))
@settings(max_examples=examples(15, nightly=300), deadline=None)
@example(data=None, texts=[LATE, "2932896"])
def test_an_infinity_is_found_in_its_own_column(data, texts):
    """Not in a text that reads the same."""
    kind = Kind("date")
    days = [0] * len(texts)
    if data is not None:
        days = data.draw(st.lists(kind.values().filter(kind.fits), min_size=len(texts), max_size=len(texts)))  # fmt: skip
    columns = [CatalogColumn("t", "text", key_position=1), *kind.columns("", "d")[1:]]
    _, chunk = by_chunk(columns, kind.modes, [[t, kind.text(d)] for t, d in zip(texts, days, strict=True)])  # fmt: skip
    told_apart_ends = {
        f"{side} {meaning} d"
        for day in days
        for side, meaning, value in (
            ("last", "infinite", LATE),
            ("first", "infinite", EARLY),
            ("last", "finite", civil.LAST_DAY),
            ("first", "finite", civil.FIRST_DAY),
        )
        if day == value
    }
    types = {c.name: c.type for c in chunk.schema.columns}
    assert key_ends([chunk.keys], types) == sorted(told_apart_ends)
    given_back = [key for key, day in zip(chunk.keys.to_pylist(), days, strict=True) if day == LATE]
    assert [text[1] for text in key_texts(given_back, chunk.schema.columns)] == [LATE] * len(given_back)  # fmt: skip


# Type, modifier -> texts as a chunk's SELECT gives them, each of another key of the database.
SHORT, LONG = ((15 << 16) | 2) + 4, ((16 << 16) | 2) + 4
APART = {
    ("bool", -1): ["t", "f"],
    ("int2", -1): ["-32768", "0", "32767"],
    ("int8", -1): ["-9223372036854775808", "0", "9223372036854775807"],
    ("oid", -1): ["0", "4294967295"],
    ("float4", -1): ["0", "1e-45", "1.1", "1.1000001", "NaN", "Infinity", "-Infinity"],
    ("float8", -1): ["0", "5e-324", "0.1", "0.10000000000000002", "NaN", "Infinity"],
    ("numeric", SHORT): ["0.00", "-0.01", "0.01", "9999999999999.99", "9999999999999.98"],
    ("numeric", LONG): ["0.00", *(f"9999999999999{n}.{m}" for n in "56789" for m in (97, 98, 99))],
    ("numeric", -1): ["0", "1", "1.0000000000000000000001", "9" * 60, "9" * 59 + "8"],
    ("money", -1): ["92233720368547758.07", "92233720368547758.06", "0.00"],
    ("text", -1): ["", " ", "a", "A", "a ", "ä", "a\u0308", "__debezium_unavailable_value"],
    ("varchar", 14): ["", " ", "a", "a "],
    ("bpchar", 9): ["     ", "a    ", " a   "],
    ("citext", -1): ["a", "b"],
    ("name", -1): ["a", "b"],
    ("bit", 1): ["1", "0"],
    ("bit", 12): ["000000000001", "100000000000", "000000000000"],
    ("varbit", -1): ["1", "01", "", "0", "00"],
    ("varbit", 12): ["1", "01", "", "0"],
    ("varbit", 1): ["1", "0", ""],
    ("uuid", -1): ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"],
    ("inet", -1): ["10.1.2.3", "10.1.2.3/8", "::ffff:10.1.2.3"],
    ("cidr", -1): ["10.0.0.0/8", "10.0.0.0/9"],
    ("macaddr", -1): ["08:00:2b:01:02:03", "08:00:2b:01:02:04"],
    ("time", -1): ["00:00:00", "24:00:00", "23:59:59.999999", "23:59:59.999998"],
    ("time", 3): ["00:00:00", "24:00:00", "23:59:59.999", "23:59:59.998"],
    ("timetz", -1): ["12:00:00+02", "12:00:00+01", "10:00:00+00"],
    ("timestamp", -1): ["2024-01-01 00:00:00.000001", "2024-01-01 00:00:00.000002", "infinity"],
    ("timestamp", 3): ["2024-01-01 00:00:00.001", "2024-01-01 00:00:00.002", "infinity"],
    ("timestamptz", -1): ["2024-01-01 00:00:00.000001+00", "2024-01-01 00:00:00+00", "infinity"],
    ("date", -1): ["2024-01-01", "infinity", "-infinity"],
    ("interval", -1): ["P1M", "P30DT10H30M", "PT1S", "P-1M"],
    ("int4range", -1): ["[1,5)", "empty", "(,)"],
    ("numrange", -1): ["[1.50,2.5]", "[1.50,2.5)"],
    ("tstzrange", -1): ["empty", '["2024-01-01 00:00:00+00",)'],
    ("jsonb", -1): ['{"a": 1}', '{"a": 2}', "null", '"null"'],
    ("hstore", -1): ["", '"a"=>"1"', '"a"=>NULL', '"a"=>"NULL"'],
    ("ltree", -1): ["", "a.b", "a"],
}  # fmt: skip
# What the connector makes one of two, though a chunk's texts tell them apart.
IN_THE_LOG_ONLY = {"timetz", "money", "name", "tstzrange", "time"}


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("kind", "typmod"), APART)
@pytest.mark.sampled(60)
def test_every_type_is_exact_or_refused(kind, typmod, modes):
    texts = APART[kind, typmod]
    modes = HandlingModes.from_connector(modes)
    columns = [CatalogColumn("k", kind, typmod, key_position=1)]
    schema = from_catalog(TABLE, columns, ["k"], modes)
    fault = schema.key_fault(modes)
    if pa.types.is_nested(schema.columns[0].type):
        assert fault is not None
        return
    _, chunk = by_chunk(columns, modes, [[text] for text in texts])
    apart = len(set(chunk.keys.to_pylist())) == len(texts)
    rows = chunk.rows.column("k").to_pylist()
    assert apart == (len(set(map(repr, rows))) == len(texts)), "the lake has them as they are"
    if fault is None:
        assert apart
    else:
        assert fault.code == "key-type"
        assert "'k'" in fault.reason
        assert not apart or kind in IN_THE_LOG_ONLY, "refused for nothing"


GOLDEN = json.loads((Path(__file__).parents[1] / "golden/postgres_keys.json").read_text())
# Of these the connector itself makes other keys, which nobody can tell from those.
ELSEWHERE = {
    ("date", "0001-12-31 BC"), ("date", "0044-03-15 BC"), ("date", "4713-01-01 BC"),
    ("timestamp(3)", "294276-12-31 00:00:00"),
}  # fmt: skip


@pytest.mark.parametrize(("mode", "kind"), [(m, k) for m, kinds in GOLDEN.items() for k in kinds])
def test_keys_as_a_connector_wrote_them(mode, kind):
    modes = HandlingModes.from_connector(MODES[mode])
    name, _, digits = kind.removesuffix(")").partition("(")
    columns = [CatalogColumn("k", name, int(digits or -1), key_position=1)]
    schema = from_catalog(TABLE, columns, ["k"], modes)
    if schema.key_fault(modes):
        return
    found = {}
    for text, sent in GOLDEN[mode][kind].items():
        if (kind, text) in ELSEWHERE:
            continue
        keys = canonical_keys([json.dumps({"k": key}).encode() for key in sent.values()], schema)
        assert len(set(keys)) == 1, "one key in the connector's snapshot and in the log"
        if keys[0] is None:
            raw = json.dumps({"k": next(iter(sent.values()))}).encode()
            assert out_of_range(raw, schema) == schema.columns[0]
            with pytest.raises(TableError, match="not infinite"):
                by_chunk(columns, modes, [[text]])
        else:
            found[text] = keys[0]
            assert by_chunk(columns, modes, [[text]])[1].keys.to_pylist() == keys[:1]
    assert len(set(found.values())) == len(found) > 1
