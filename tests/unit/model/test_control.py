"""Control records are typed inside, and JSON objects of the same form as ever on their topic."""

import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.model import control
from lakemark.model.control import COMMANDS, Record, converted, decode, encode
from lakemark.state import control as control_topic

SCHEMA = Path(__file__).parents[3] / "schemas" / "control.json"
TEXTS = st.text(max_size=8)
NAMES = st.text(min_size=1, max_size=8)
WHOLE = st.integers(0, 2**63 - 1)
PLACE = {"run": NAMES, "table": NAMES, "chunk": WHOLE, "attempt": WHOLE}
OFFSETS = st.dictionaries(NAMES, st.dictionaries(st.sampled_from("012"), WHOLE))
FILL = {"column": "w", "upto": "00", "known": ["id"], "value": "x"}


def written(kind, must, may=None):
    """Records as they were written when they were dictionaries: what must be there, and may."""
    ours = {"ts_ms": st.integers(1, 2**53)}
    with_type = {"type": st.just(kind), **ours, **must}
    return st.fixed_dictionaries(with_type, optional=may or {})


def command(kind, must=None, may=None):
    return written(kind, {"table": TEXTS, "id": NAMES, **(must or {})}, may)


OLD = [
    written(
        "run-start",
        {
            "run": NAMES, "tables": st.lists(NAMES, min_size=1, max_size=3), "windows": TEXTS,
            "attempt": WHOLE, "mode": st.sampled_from(["order", "table"]),
        },
    ),
    written("run-end", {"run": NAMES}),
    written(
        "chunk",
        {
            **PLACE, "parts": st.dictionaries(st.sampled_from("0123"), WHOLE), "lo": NAMES,
            "hi": NAMES, "server": TEXTS,
        },
        {"position": TEXTS},
    ),
    written(
        "window",
        {"window": NAMES, "run": NAMES, "oldest": TEXTS, "position": TEXTS, "server": NAMES},
    ),
    written("void", {**PLACE, "reason": TEXTS}),
    written("attempts", {"attempt": WHOLE}),
    written("fence", {"position": TEXTS}),
    written("sweep", {"run": NAMES, "table": NAMES, "position": TEXTS}),
    written("table-read", {"table": NAMES, "until": st.integers(-1, 9)}, {"keys": st.lists(TEXTS)}),
    command("table-pause"),
    command(
        "table-verified",
        may={
            "run": NAMES, "turn_ms": st.integers(1, 9), "ended_ms": st.integers(1, 9),
            "batch": st.integers(0, 9), "compared": st.booleans(), "proved": st.booleans(),
            "mended": st.booleans(), "position": NAMES, "rows": st.integers(1, 9),
            "newer": st.integers(1, 9), "found": st.just({"missing": 1}), "code": NAMES,
            "reason": NAMES, "hint": NAMES, "retried": st.booleans(),
        },
    ),
    command("table-resume", may={"code": TEXTS}),
    command("table-stop", {"code": TEXTS, "reason": TEXTS, "hint": TEXTS}),
    command("table-skip", {"offsets": OFFSETS}),
    command("table-resnapshot", may={"reason": TEXTS}),
    command(
        "table-rebuild",
        may={
            "reason": TEXTS, "offsets": OFFSETS, "code": TEXTS, "automatic": st.booleans(),
            "cancel": st.booleans(),
        },
    ),
    command("table-fill", {"reason": TEXTS, "fills": st.just([FILL])}),
    command("new-epoch"),
    command("control-lost"),
    written("wake", {"id": NAMES}),
]  # fmt: skip


@given(st.one_of(OLD))
def test_a_record_is_written_and_read_in_the_form_that_it_had(old):
    record = converted(old)
    assert json.loads(encode(record)) == old
    assert decode(json.dumps(old).encode()) == record
    assert decode(encode(record)) == record


def test_the_types_are_those_of_the_schema():
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(Record)}
    assert kinds.keys() == {one["title"] for one in schema["oneOf"]}
    assert kinds.keys() >= COMMANDS
    assert len(OLD) == len(kinds)
    for one in schema["oneOf"]:
        fields = {field.name for field in msgspec.structs.fields(kinds[one["title"]])}
        assert one["properties"].keys() - {"type"} <= fields


@pytest.mark.parametrize(
    "value",
    [
        b"", b"null", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000,
        b'{"type":"of-tomorrow","table":"t"}',
        b'{"type":7}',
        b'{"type":"void"}',
        b'{"type":"void","attempt":-1}',
        b'{"type":"attempts","attempt":1e300}',
        b'{"type":"run-start","run":7,"tables":["t"]}',
        b'{"type":"table-read","table":"t","until":"x"}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_left_out(value):
    assert decode(value) is None


def test_fields_of_tomorrow_mean_nothing():
    assert decode(b'{"type":"wake","id":"a","how":"slowly"}') == control.Wake(id="a")


def test_a_reason_may_have_what_is_no_character():
    record = control.TableResnapshot(table="t", reason="\udc80")
    assert json.loads(encode(record)) == {
        "type": "table-resnapshot", "table": "t", "reason": "\udc80",
    }  # fmt: skip


@pytest.mark.parametrize("more", [{"until": "soon"}, {"upto": 7}])
def test_a_field_that_a_record_does_not_have_is_not_written(more, monkeypatch):
    monkeypatch.setattr(control_topic, "require", lambda *_: None)
    monkeypatch.setattr(control_topic.records, "publish", lambda *_: pytest.fail("it was written"))
    config = type("C", (), {"topics": type("T", (), {"control": "c"})})
    with pytest.raises(msgspec.ValidationError):
        control_topic.write(config, "table-read", "t", more)
