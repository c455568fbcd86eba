"""The JSON Schemas of the internal topics fit real messages, and refuse what is none."""

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model.decoding import DeadLetter
from lakemark.model.key_ranges import KeyRange
from lakemark.reconcile import window
from lakemark.reconcile.chunks import Header
from lakemark.reconcile.state import ArmedRun, decode_state
from lakemark.sink.output.dead_letter import headers
from lakemark.snapshot.runs import Chunk, TableRun, page_value
from lakemark.snapshot.runs import Run as SnapshotRun
from lakemark.source.changed_keys import WindowRow, window_row
from lakemark.state import stored_form
from lakemark.state.progress import PAGE_PREFIX, RUN_PREFIX
from tests.kit.golden import samples
from tests.kit.table_states import table_state

SCHEMAS = Path(__file__).parents[3] / "schemas"
LO = lsns.pack(1, 2, 3).hex()
PART = {"run": "r1", "table": "public.a", "chunk": 0, "attempt": 1}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


def fits(name: str, message: object) -> bool:
    return validator(name).is_valid(message)


def golden(start: str, *, wrapped: bool = False) -> list[dict]:
    found = [r for label, r in samples(wrapped=wrapped).items() if label.startswith(start)]
    assert found
    values = [json.loads(r.value) for r in found]
    return [value.get("payload", value) for value in values]


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda p: p.stem)
def test_schemas_are_schemas(path):
    Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("wrapped", [False, True])
def test_real_notifications(wrapped):
    for message in golden("notification_", wrapped=wrapped):
        validator("notification").validate(message)


def test_real_signal():
    (message,) = golden("signal_topic_execute_snapshot_input")
    validator("signal").validate(message)
    assert not fits("signal", message | {"type": "snapshot-everything"})
    assert not fits("signal", message | {"data": {}})
    assert not fits("signal", message | {"data": {"data-collections": []}})
    assert fits("signal", {"type": "pause-snapshot", "data": {}})


@pytest.mark.parametrize("wrapped", [False, True])
def test_real_window_rows(wrapped):
    schema = validator("window-row")
    data = Draft202012Validator(schema.schema["$defs"]["data"])
    for event in golden("signal_table_row_snapshot-window", wrapped=wrapped):
        schema.validate(event["after"])
        data.validate(json.loads(event["after"]["data"]))
    for other in golden("signal_table_row_log", wrapped=wrapped):
        assert not schema.is_valid(other["after"])
    assert data.is_valid({"run": "r1", "oldest": "", "server": "x", "bound": "00" * 16})
    assert not data.is_valid({"run": "r1"})


def first_cells(row):
    return CONVERTERS[JSON].first_cells(json.dumps(row).encode(), 4)


def test_a_window_row_of_a_signal_table_that_has_more_columns():
    row = {"uuid": "w1", "what": "snapshot-window-open", "data": "{}"}
    for more in ({}, {"at": 1790000000000000, "by": None, "tags": ["a"], "sure": True}):
        found = window_row(first_cells(row | more))
        assert found == WindowRow("w1", "snapshot-window-open", "{}")
    for other in ({"id": 1}, row | {"what": "log"}, row | {"data": None}, {"uuid": "w1"}):
        assert window_row(first_cells(other)) is None


def test_chunk_header():
    header = PART | {"shard": 0, "part": 0}
    assert fits("chunk-header", header)
    assert msgspec.convert(header, type=Header).attempt == 1
    assert not fits("chunk-header", header | {"part": "00"})
    assert not fits("chunk-header", {k: v for k, v in header.items() if k != "shard"})


CONTROLS = [
    {"type": "run-start", "run": "r1", "tables": ["public.a"]},
    {"type": "run-end", "run": "r1"},
    {"type": "chunk", **PART, "parts": {"0": 2}, "lo": "w1", "hi": "w2"},
    {"type": "void", **PART, "reason": "schema-changed"},
    {"type": "attempts", "attempt": 7},
    {"type": "fence", "position": LO},
    {
        "type": "window",
        "window": "w1-open",
        "run": "r1",
        "oldest": "w1",
        "position": LO,
        "server": "s",
    },
    {"type": "sweep", "run": "r1", "table": "public.a", "position": LO},
    {"type": "table-read", "table": "public.a", "until": 5},
    {"type": "table-pause", "table": "public.a", "id": "x", "ts_ms": 1},
    {"type": "table-resume", "table": "public.a"},
    {"type": "table-skip", "table": "public.a", "offsets": {"shop.public.a": {"0": 17}}},
    {"type": "wake", "id": "x", "ts_ms": 1},
]


@pytest.mark.parametrize("record", CONTROLS, ids=lambda r: r["type"])
def test_control_records(record):
    validator("control").validate(record)
    for name in set(record) - {"id", "ts_ms"}:
        assert not fits("control", {k: v for k, v in record.items() if k != name}), name
    window.fold(None, {window.CONTROL: [json.dumps(record).encode()]}, shard=0)


def test_what_the_operator_takes_for_a_run_is_one():
    armed = window.fold(None, {window.CONTROL: [json.dumps(CONTROLS[0]).encode()]}, shard=0)
    assert decode_state(armed.state).runs == {"r1": ArmedRun(["public.a"], windows="r1")}


def test_progress_records():
    entry = stored_form.flat(table_state(state="errored", code="no-key", floor=LO))
    assert fits("progress", {"table": "public.a", "batch": 3, **entry})
    assert fits("progress", {"state": "degraded", "batch": 3, "code": "", "ts_ms": 1})
    assert fits("progress", {"tables": ["public.a"], "ts_ms": 1})
    assert not fits("progress", {"tables": [1], "ts_ms": 1})
    assert not fits("progress", {"table": "public.a"})
    assert not fits("progress", {"table": "public.a", "batch": 3, "floor": "xyz"})


def test_keys_of_runs_are_written_as_the_schema_says():
    said = json.loads((SCHEMAS / "progress.json").read_text())["description"]
    assert f"`{RUN_PREFIX.decode()}<id>`" in said
    assert f"`{PAGE_PREFIX.decode()}[run, table, cut, page]`" in said


def test_progress_records_of_the_coordinator():
    table = TableRun("public.a", first_lo=LO, keys=[["1", "x"]], seconds=1.5)
    run = msgspec.to_builtins(SnapshotRun("r1", [table], delay=0.5, surrogate="b", paused=True))
    assert fits("progress", run)
    assert not fits("progress", run | {"tables": [{"state": "reading"}]})
    chunks = [Chunk.of(KeyRange(None, ("5",))), Chunk(keys=[["1", "x"]], done=True, rows=3, lo=LO)]
    page = json.loads(page_value(chunks))
    assert fits("progress", page)
    assert not fits("progress", [page[0][:3]])
    assert fits("progress", 3)
    assert fits("progress", {"0": 17})
    assert not fits("progress", {"0": "17"})


def test_dead_letter_headers():
    letter = DeadLetter("shop.public.a", 0, 5, "invalid-json", "byte 3", None, b"{]", "public.a")
    found = {name: value.decode() for name, value in headers(letter)}
    validator("dead-letter-headers").validate(found)
    assert not fits("dead-letter-headers", found | {"lakemark.offset": "five"})


def test_defaults_of_settings_are_what_the_schema_accepts():
    schema = json.loads((SCHEMAS / "config.json").read_text())
    sections = [schema, *schema["$defs"].values()]
    defaults = {
        name: setting
        for section in sections
        for name, setting in section["properties"].items()
        if "default" in setting
    }
    assert len(defaults) > 30
    for name, setting in defaults.items():
        rules = Draft202012Validator({**setting, "$defs": schema["$defs"]})
        assert rules.is_valid(setting["default"]), name
