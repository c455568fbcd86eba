"""Debezium records that other projects keep for their own tests decode to the values they expect."""

import base64
import datetime as dt
import json
import struct
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec
import pytest

from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_connect, from_envelope

REPO = Path(__file__).parents[3]
SHARED = REPO.parent / "shared" / "fixtures"
FIXTURES = SHARED if SHARED.is_dir() else REPO / "tests" / "golden" / "fixtures"
pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the fixtures are not here")
CASES = sorted(p.parent.name for p in FIXTURES.glob("*/expected.json"))
NUMERIC = {"paimon_all_types", "seatunnel_mysql_all_types"}  # decimals as JSON numbers
WITHOUT_IMAGES = {"seatunnel_bad_records"}


class Envelope(msgspec.Struct):
    before: msgspec.Raw = msgspec.Raw(b"null")
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: dict = {}
    op: str = ""


def load(case):
    expected = json.loads((FIXTURES / case / "expected.json").read_text(), parse_float=Decimal)
    lines = (FIXTURES / case / "records.jsonl").read_text().splitlines()
    return expected, [json.loads(line) for line in lines]


def parts(value):
    """The wrapper's schema or None, and the envelope."""
    whole = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    if "payload" in whole:
        schema = whole.get("schema")
        return (json.loads(bytes(schema)) if schema else None), msgspec.json.decode(
            whole["payload"], type=Envelope
        )
    return None, msgspec.json.decode(value, type=Envelope)


def guessed(images):
    """Connect schema of plain images: a file the user gives would say as much."""
    kinds: dict[str, str] = {}
    for image in images:
        for name, value in json.loads(image).items():
            kind = {bool: "boolean", int: "int64", float: "double", str: "string"}.get(type(value))
            if kind and not (kinds.get(name) == "double" and kind == "int64"):
                kinds[name] = kind
            kinds.setdefault(name, "string")
    return {
        "type": "struct",
        "fields": [{"field": n, "type": t, "optional": True} for n, t in kinds.items()],
    }


def equal(got, wanted, *, loose):
    if wanted is None or got is None:
        return got is None and wanted is None
    if got == wanted or str(got) == str(wanted):
        return True
    return loose and any(same(got, wanted) for same in (_number, _moment, _blob, _json, _shape))


def _number(got, wanted):
    try:
        exact = Decimal(str(got)) == Decimal(str(wanted))
    except InvalidOperation:
        return False
    return exact or (
        isinstance(got, float) and struct.pack("f", got) == struct.pack("f", float(wanted))
    )


def _moment(got, wanted):
    if isinstance(got, dt.datetime):
        return got.replace(tzinfo=None) == dt.datetime.fromisoformat(str(wanted)).replace(
            tzinfo=None
        )
    if isinstance(got, dt.date):
        days = (
            dt.date(1970, 1, 1) + dt.timedelta(days=int(wanted))
            if str(wanted).isdigit()
            else dt.date.fromisoformat(str(wanted))
        )
        return got == days
    return (
        isinstance(got, str)
        and got.startswith(str(wanted))
        and not got[len(str(wanted)) :].strip(".0")
    )


def _blob(got, wanted):
    if not isinstance(got, bytes):
        return False
    # bit(n) is little-endian in Debezium, and written the other way round in some sources
    return wanted in (got.hex(), got[::-1].hex()) or got == base64.b64decode(wanted)


def _json(got, wanted):
    try:
        return json.loads(got) == json.loads(wanted)
    except (TypeError, ValueError):
        return False


def _shape(got, wanted):
    if not isinstance(got, dict) or "wkb" not in got:
        return False
    shape = json.loads(wanted)
    found, _ = _wkb(got["wkb"], 0)
    return found == shape.get(
        "coordinates", [g["coordinates"] for g in shape.get("geometries", [])]
    )


def _wkb(raw, at):
    """Coordinates of a little-endian well-known binary shape, and where it ends."""
    kind, at = struct.unpack_from("<I", raw, at + 1)[0] & 0xFF, at + 5

    def many(at, one):
        (count,), at = struct.unpack_from("<I", raw, at), at + 4
        out = []
        for _ in range(count):
            item, at = one(at)
            out.append(item)
        return out, at

    def point(at):
        return list(struct.unpack_from("<dd", raw, at)), at + 16

    readers = {
        1: point,
        2: lambda at: many(at, point),
        3: lambda at: many(at, lambda a: many(a, point)),
    }
    return readers.get(kind, lambda at: many(at, lambda a: _wkb(raw, a)))(at)


def run(case):
    """Last decoded image per key of the expected table, decoded with each record's own schema."""
    expected, records = load(case)
    modes = HandlingModes(decimal_format="NUMERIC" if case in NUMERIC else "BASE64")
    read = [
        (r["key"].encode() if r["key"] else None, *parts(r["value"])) for r in records if r["value"]
    ]
    ours = [
        (k, s, e)
        for k, s, e in read
        if e.source.get("table", expected["table"]) == expected["table"]
    ]
    plain = [
        bytes(i)
        for _, s, e in ours
        if s is None
        for i in (e.before, e.after)
        if i != msgspec.Raw(b"null")
    ]
    state = {}
    for key, schema, envelope in ours:
        named = {"fields": [{"field": k} for k in expected["key"]]}
        made = (
            from_envelope("s.t", schema, named)
            if schema
            else from_connect("s.t", guessed(plain), named)
        )
        (canonical,) = canonical_keys([key], made)
        assert canonical is not None
        for image in (envelope.before, envelope.after):
            if image != msgspec.Raw(b"null"):
                rows = decode_rows([bytes(image)], made, modes)
                assert (rows.bad, rows.unknown) == ([], set())
                values = json.loads(bytes(image))
                if all(k in values for k in expected["key"]):
                    again = json.dumps({k: values[k] for k in expected["key"]}).encode()
                    assert canonical_keys([again], made) == [canonical]
        if envelope.op == "d":
            state.pop(canonical, None)
        elif envelope.after != msgspec.Raw(b"null"):
            state[canonical] = rows.columns[0].as_py()
    return expected, state


@pytest.mark.parametrize("case", [c for c in CASES if c not in WITHOUT_IMAGES])
def test_every_image_decodes_to_the_expected_values(case):
    expected, state = run(case)
    loose = set(expected["loose"])
    if case == "flink_mysql_schema_include":
        loose.add("weight")
    found = {tuple(str(row[k]) for k in expected["key"]): row for row in state.values()}
    assert len(found) == len(expected["rows"])
    for row in expected["rows"]:
        got = found[tuple(str(row[k]) for k in expected["key"])]
        names = (
            expected.get("asserted_by_source", list(row))
            if case == "rw_timestamp_micro"
            else list(row)
        )
        for name in names:
            doubtful = name in (expected.get("doubtful") or {})
            assert doubtful or equal(got.get(name), row[name], loose=name in loose), (
                name,
                row[name],
                got.get(name),
            )


def test_the_fixtures_are_complete():
    assert len(CASES) >= 14


@pytest.mark.parametrize("case", sorted(WITHOUT_IMAGES))
def test_records_without_a_row_are_no_row(case):
    _, records = load(case)
    schema = from_connect(
        "s.t", {"fields": [{"field": "id", "type": "int64", "optional": True}]}, None
    )
    values = [r["value"].encode() for r in records if r["value"]]
    rows = decode_rows(values, schema, HandlingModes())
    assert (0, "wrong-type", "the row image is not a JSON object") in rows.bad
