"""Converters of other packages: the example, one that cannot be used, and how they are found."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from lakemark.converters import registry
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.registry import CONVERTERS, GROUP, UNUSABLE, choice_of, problems
from lakemark.converters.transcribed import UNREADABLE
from lakemark.model.decoding import Records
from lakemark.model.events import Kind
from lakemark.source import decoder
from tests.kit.converter_contract import ROW, TOPIC, ConverterContract, by_key

EXAMPLE = Path(__file__).parents[3] / "examples" / "converter"
MODULE = "lakemark_msgpack"
CLASS = "com.example.MessagePackConverter"
NAME = "msgpack-of-the-example"


def example():
    spec = importlib.util.spec_from_file_location(MODULE, EXAMPLE / f"{MODULE}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True, scope="module")
def registered():
    CONVERTERS[NAME] = example().converter(JsonConverter())
    yield
    del CONVERTERS[NAME]


@pytest.fixture
def found(monkeypatch):
    """Has entry points be found, and forgets them afterwards."""
    kept = dict(CONVERTERS), dict(UNUSABLE)

    def find(**values):
        points = [EntryPoint(name, value, GROUP) for name, value in values.items()]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: points if group == GROUP else []
        )
        registry.add_found()

    yield find
    for known, before in zip((CONVERTERS, UNUSABLE), kept, strict=True):
        known.clear()
        known.update(before)


class TestTheExample(ConverterContract):
    name = NAME

    def value(self, event):
        return msgspec.msgpack.encode(event)

    def key(self, row):
        return msgspec.msgpack.encode(row)


def test_the_page_shows_the_whole_example():
    page = (EXAMPLE.parents[1] / "docs" / "converters.md").read_text()
    assert f"```python\n{(EXAMPLE / f'{MODULE}.py').read_text()}```" in page
    points = (EXAMPLE / "pyproject.toml").read_text().partition("[project.entry-points")[2]
    assert f"[project.entry-points{points}```" in page


def test_a_record_that_is_none_of_its_form_says_so():
    contract = TestTheExample()
    event, key = contract.event("c", None, ROW), contract.key({"id": 7, "part": "a"})
    heads = contract.headers([event[:-1], event, event], [key, key, b"\xc1"])
    assert heads.kind == [Kind.BAD, Kind.CHANGE, Kind.BAD]
    assert heads.reason == [UNREADABLE, None, UNREADABLE]
    assert heads.detail[::2] == ["the value is no MessagePack", "the key is no MessagePack"]
    assert heads.after[0] is heads.after[2] is None


def test_records_are_decoded_the_faster_way():
    contract = TestTheExample()
    contract.converter.prepare()
    CONVERTERS["json"].prepare()
    keys = [contract.key({"id": n % 3, "part": "a"}) for n in range(9)]
    values = [
        contract.event("c", None, {**ROW, "id": n % 3, "part": "a"}, at=n + 1) for n in range(9)
    ]
    columns = [pa.array(range(9)), pa.array(keys), pa.array(values)]
    batch = pa.RecordBatch.from_arrays(columns, ["offset", "key", "value"])
    plan = replace(contract.plan, max_event_bytes=max(map(len, values)))
    quick = contract.converter.plain_range(TOPIC, 0, [batch], plan)
    records = Records(TOPIC, 0, [*range(9)], keys, values, [None] * 9)
    general = decoder.decode_range(records, plan)
    assert quick is not None
    assert by_key(quick) == by_key(general)
    assert len(by_key(general)) == 3


def test_the_size_that_counts_is_that_of_the_record():
    """Its JSON is larger than what came, which is what a limit is set for."""
    contract = TestTheExample()
    key, value = contract.key({"id": 7, "part": "a"}), contract.event("c", None, ROW)
    for most, kind in ((len(value), Kind.CHANGE), (len(value) - 1, Kind.BAD)):
        plan = replace(contract.plan, max_event_bytes=most)
        records = Records(TOPIC, 0, [0], [key], [value], [None])
        heads = contract.converter.headers(records, plan)
        assert heads.kind == [kind]
        assert heads.reason == ["record-too-large" if kind == Kind.BAD else None]
        batch = pa.RecordBatch.from_pydict({"offset": [0], "key": [key], "value": [value]})
        quick = contract.converter.plain_range(TOPIC, 0, [batch], plan)
        assert (quick is None) == (kind == Kind.BAD)


def test_a_key_without_a_readable_value_is_a_record_all_the_same():
    contract = TestTheExample()
    key = contract.key({"id": 7, "part": "a"})
    records = Records(TOPIC, 0, [0], [key], [None], [None])
    assert contract.converter.headers(records, contract.plan).kind == [Kind.TOMBSTONE]


def test_an_installed_package_is_found_and_chosen_by_its_class(tmp_path):
    """As pip installs it: a module, and a folder that names its entry points."""
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    (tmp_path / f"{MODULE}.py").write_bytes((EXAMPLE / f"{MODULE}.py").read_bytes())
    info = tmp_path / "lakemark_msgpack-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lakemark-msgpack\nVersion: 1.0.0\n"
    )
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{g}]\n" + "\n".join(f"{k} = {v}" for k, v in p.items()) for g, p in points.items()
        )
    )
    script = (
        "import json; from lakemark.converters.registry import choice_of, converter_of\n"
        f"choice = choice_of({{'value.converter': '{CLASS}', 'key.converter': '{CLASS}'}}, {{}})\n"
        "print(json.dumps([choice.name, type(converter_of(choice)).__name__]))"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["msgpack", "TranscribedConverter"]


def test_what_cannot_be_used_is_named_where_it_is_wanted_and_stops_nobody_else(found, logs):
    found(gone="no_such_package:converter", odd="builtins:repr", json="builtins:repr")
    assert set(UNUSABLE) == {"gone", "odd"}
    assert isinstance(CONVERTERS["json"], JsonConverter), "ours are not replaced"
    assert [one["converter"] for one in logs if one["event"] == "converter.unusable"] == [
        "gone",
        "odd",
    ]
    (wrong,) = (
        one
        for one in problems({"value.converter": CLASS + "X"}, {}, described=True)
        if not one.warning
    )
    assert "no converter here reads what com.example.MessagePackConverterX writes" in wrong.message
    assert "gone cannot be used: no_such_package:converter: No module named" in wrong.message
    assert "odd cannot be used: builtins:repr: it is no Converter: it has no" in wrong.message
    assert choice_of({"value.converter": CLASS + "X"}, {}).name == "json"
