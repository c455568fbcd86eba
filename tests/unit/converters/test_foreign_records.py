"""Records of other projects' tests, through stretch, packets and resolve, to the rows they expect."""

import json

import pytest

from lakemark.model import change_batch
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_connect
from lakemark.sink.resolve import Part, resolve
from lakemark.source import decoder
from tests.kit.golden import case, cases, placed
from tests.kit.table_model import DictLake
from tests.unit.converters.test_foreign_records_decoded import NUMERIC, equal, guessed, load, parts

BAD = "seatunnel_bad_records"
TOPIC = "t"


def schemas_of(records):
    """What a schema file would say of the tables whose records carry no schema."""
    images, keys = {}, {}
    for record in records:
        try:
            schema, envelope = parts(record.value or b"")
        except ValueError:
            continue
        source = envelope.source
        if schema is not None or not source.get("table"):
            continue
        table = f"{source.get('schema') or source.get('db')}.{source['table']}"
        found = [bytes(i) for i in (envelope.before, envelope.after) if bytes(i) != b"null"]
        images.setdefault(table, []).extend(found)
        keys[table] = list(json.loads(record.key)) if record.key else []
    return {
        table: from_connect(table, guessed(found), {"fields": [{"field": k} for k in keys[table]]})
        for table, found in images.items()
    }


def mirror(name, cut):
    """The tables that the case's records make, in two batches cut at `cut`; and dead letters."""
    records = case(name)
    known, records = schemas_of(records), placed(records)
    applied, lakes, dead = {}, {}, []
    for batch, part in enumerate((records[:cut], records[cut:])):
        plan = StretchPlan(
            SourceIdentity("", ""),
            HandlingModes(decimal_format="NUMERIC" if name in NUMERIC else "BASE64"),
            schemas=known,
            verified=frozenset(known),
            applied=applied,
        )
        raw = Records(
            TOPIC,
            0,
            [r.offset for r in part],
            [r.key for r in part],
            [r.value for r in part],
            [r.headers for r in part],
        )
        done = decoder.decode_range(raw, plan)
        applied = {(TOPIC, 0): done.applied_position}
        dead += done.dead
        for table, report in done.tables.items():
            assert report.stop is None, (table, report.stop)
            assert report.unknown_columns == set()
        for table in dict.fromkeys(t for t, _ in done.packets):
            mine = [p for t, p in done.packets if t == table]
            result = resolve(
                [
                    Part("0", n, change_batch.decode(change_batch.encode(p)))
                    for n, p in enumerate(mine)
                ],
                truncated_at=None,
                pending=None,
                read_rows=lambda keys: keys.slice(0, 0),
                deletes="hard",
            )
            assert result.pending is None
            lake = lakes.setdefault(table, DictLake(key=change_batch.key_columns_of(mine[0]).names))
            lake.merge(result.write_set, version=batch)
    return lakes, dead


def check(expected, lake, *, extra_loose=frozenset()):
    loose = set(expected.get("loose", ())) | extra_loose
    found = {tuple(str(row[k]) for k in expected["key"]): row for row in lake.rows().values()}
    assert len(found) == len(expected["rows"])
    for row in expected["rows"]:
        got = found[tuple(str(row[k]) for k in expected["key"])]
        for name in expected.get("asserted_by_source", row):
            doubtful = name in (expected.get("doubtful") or {})
            good = equal(got.get(name), row[name], loose=name in loose)
            assert doubtful or good, (name, row[name], got.get(name))
        assert got["_cdc"]["unavailable"] is None


@pytest.mark.parametrize("cut", [0, 1, 7, 10])
@pytest.mark.parametrize("name", [c for c in cases() if c != BAD])
@pytest.mark.sampled(15)
def test_the_rows_are_those_expected(name, cut):
    expected, _ = load(name)
    lakes, dead = mirror(name, cut)
    assert dead == []
    by_name = {table.rpartition(".")[2]: lake for table, lake in lakes.items()}
    extra = {"weight"} if name == "flink_mysql_schema_include" else set()
    check(expected, by_name[expected["table"]], extra_loose=extra)
    for other in expected.get("other_tables", ()):
        check(other, by_name[other["table"]])


def test_bad_records_are_dead_letters_and_nothing_else():
    expected, _ = load(BAD)
    lakes, dead = mirror(BAD, 3)
    assert lakes == {}
    assert [letter.offset for letter in dead] == expected["expect_error_offsets"]
