"""Signals: what is understood, what is refused and how."""

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from lakemark.settings.config import SnapshotConfig
from lakemark.snapshot import fields
from lakemark.snapshot.fields import AdditionalCondition, PrimaryKey
from lakemark.snapshot.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    Rejection,
    ResumeSnapshot,
    SetSnapshot,
    StopSnapshot,
    matching,
    read,
)
from tests.kit.golden import samples
from tests.kit.signals import EXECUTE, TABLES, answer, bytes_of, execute, signal

SCHEMA = Draft202012Validator(
    json.loads((Path(__file__).parents[3] / "schemas" / "signal.json").read_text())
)
KINDS = ["execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "set-snapshot"]
ANSWERS = (ExecuteSnapshot, StopSnapshot, PauseSnapshot, ResumeSnapshot, SetSnapshot, Rejection)

GOOD = [
    (signal("execute-snapshot", EXECUTE), ExecuteSnapshot("s1", ("public.orders",))),
    (
        signal("execute-snapshot", json.dumps({**EXECUTE, "type": "INCREMENTAL"})),
        ExecuteSnapshot("s1", ("public.orders",)),
    ),
    (
        {"type": "execute-snapshot", "data": {"data-collections": [" public.a ", "public\\.b.*"]}},
        ExecuteSnapshot("signals-0-17", ("public.a", "public\\.b.*")),
    ),
    (
        signal(
            "execute-snapshot",
            {
                "data-collections": ["public.orders"],
                "type": "Incremental",
                "additional-conditions": [{"data-collection": "public.o.*", "filter": "a > 1"}],
                "surrogate-key": "uid",
                "keys": [1, 2],
                "chunk-rows": 5000,
                "parallelism": 2,
                "delay": "5s",
                "priority": -3,
            },
        ),
        ExecuteSnapshot(
            id="s1",
            data_collections=("public.orders",),
            conditions=(AdditionalCondition("public.o.*", "a > 1"),),
            surrogate_key="uid",
            keys=(PrimaryKey((1,)), PrimaryKey((2,))),
            chunk_rows=5000,
            parallelism=2,
            delay=timedelta(seconds=5),
            priority=-3,
        ),
    ),
    (
        signal("execute-snapshot", {**EXECUTE, "surrogate-key": "", "additional-condition": " "}),
        ExecuteSnapshot("s1", ("public.orders",)),
    ),
    (
        signal("execute-snapshot", {**EXECUTE, "additional-condition": "a = 1"}),
        ExecuteSnapshot("s1", ("public.orders",), (AdditionalCondition(".*", "a = 1"),)),
    ),
    (signal("stop-snapshot", {}), StopSnapshot("s1")),
    (signal("stop-snapshot", {"data-collections": []}), StopSnapshot("s1")),
    (
        signal("stop-snapshot", {"type": "INCREMENTAL", "data-collections": ["a.b"]}),
        StopSnapshot("s1", ("a.b",)),
    ),
    (signal("pause-snapshot", {}), PauseSnapshot("s1")),
    (signal("pause-snapshot", ""), PauseSnapshot("s1")),
    ({"id": "s1", "type": "pause-snapshot"}, PauseSnapshot("s1")),
    (signal("resume-snapshot", {"type": "incremental"}), ResumeSnapshot("s1")),
    (
        signal("set-snapshot", {"id": "r1", "chunk-rows": 1}),
        SetSnapshot("s1", "r1", chunk_rows=1),
    ),
    (
        signal("set-snapshot", {"id": "r1", "parallelism": 8, "delay": 0}),
        SetSnapshot("s1", "r1", parallelism=8, delay=timedelta()),
    ),
]


@pytest.mark.parametrize(("message", "expected"), GOOD)
def test_a_signal_is_understood_and_fits_the_schema(message, expected):
    assert answer(message) == expected
    SCHEMA.validate(message)


def test_a_signal_as_debezium_takes_it():
    (record,) = [r for label, r in samples(wrapped=False).items() if label.startswith("signal_to")]
    found = read(record.key, record.value, pipeline="shop", unnamed="u")
    assert found == ExecuteSnapshot("kafka-sig-1", ("public.orders", "public.customers"))


def test_null_is_as_good_as_left_out():
    assert execute(keys=None, delay=None, type=None) == execute()
    assert answer({"id": None, "type": "pause-snapshot", "data": None}).id == "signals-0-17"


# Message, code, a word of the message or the hint. The schema refuses them too.
BAD = [
    ([], "wrong-type", "a list"),
    ("text", "not-json", "the signal"),
    ({"id": "s1", "data": {}}, "missing-field", "type"),
    (signal(7, {}), "wrong-type", "type is a number"),
    (signal("execute-snapshots", EXECUTE), "unknown-type", "did you mean execute-snapshot?"),
    (signal("explode", EXECUTE), "unknown-type", "set-snapshot"),
    (signal("log", {"message": "hello"}), "unknown-type", "the connector's own"),
    (signal("snapshot-window-open", {}), "unknown-type", "the connector's own"),
    (signal("pause-snapshot", {}, tpye="x"), "unknown-field", "did you mean type?"),
    (signal("pause-snapshot", {"data-collections": ["a.b"]}), "unknown-field", "type"),
    (signal("pause-snapshot", []), "wrong-type", "data is a list"),
    (signal("execute-snapshot", {}), "missing-field", "data-collections"),
    ({"id": "s1", "type": "execute-snapshot"}, "missing-field", "data-collections"),
    (signal("execute-snapshot", {"data-collections": []}), "missing-field", "data-collections"),
    (signal("execute-snapshot", {"data-collections": "a.b"}), "wrong-type", '["public.orders"]'),
    (signal("execute-snapshot", {"data-collections": [1]}), "wrong-type", "collections[0]"),
    (signal("execute-snapshot", {"data-collections": ["a.b", " "]}), "bad-value", "[1] is empty"),
    (signal("execute-snapshot", {"data-collections": [["a.b"]]}), "wrong-type", "collections[0]"),
    (signal("stop-snapshot", {"data-collections": [["a.b"]]}), "wrong-type", "collections[0]"),
    (signal("stop-snapshot", {"type": "blocking"}), "blocking", "incremental"),
    (signal("set-snapshot", {"chunk-rows": 5}), "missing-field", "data.id"),
    (signal("set-snapshot", {"id": "r1"}), "missing-field", "what to change"),
    (signal("set-snapshot", {"id": " ", "delay": "1s"}), "bad-value", "id is empty"),
    (signal("set-snapshot", {"id": "r1", "priority": 1}), "unknown-field", "parallelism"),
    *(
        (signal("execute-snapshot", {**EXECUTE, **data}), code, word)
        for data, code, word in [
            ({"data-colections": []}, "unknown-field", "did you mean data-collections?"),
            ({"zzz": 1}, "unknown-field", "it has data-collections, type"),
            ({"type": "blocking"}, "blocking", "stop the log"),
            ({"type": "BLOCKING"}, "blocking", "incremental"),
            ({"type": "full"}, "bad-value", "full"),
            ({"type": 1}, "wrong-type", "type is a number"),
            ({"additional-conditions": {}}, "wrong-type", "an object"),
            ({"additional-conditions": ["a > 1"]}, "wrong-type", "additional-conditions[0]"),
            ({"additional-conditions": [{"filter": "a"}]}, "missing-field", "data-collection"),
            ({"additional-conditions": [{"data-collection": "a"}]}, "missing-field", "filter"),
            (
                {"additional-conditions": [{"data-collection": "a", "filter": " "}]},
                "bad-value",
                "filter is empty",
            ),
            (
                {"additional-conditions": [{"data-collection": "a", "filter": "b", "filtr": 1}]},
                "unknown-field",
                "did you mean filter?",
            ),
            ({"surrogate-key": ["a"]}, "wrong-type", "surrogate-key"),
            ({"keys": 1}, "wrong-type", "keys"),
            ({"keys": []}, "bad-value", "keys is empty"),
            ({"keys": [[]]}, "bad-value", "keys[0] is empty"),
            ({"keys": [None]}, "wrong-type", "keys[0] is null"),
            ({"keys": [{"id": [1]}]}, "wrong-type", "keys[0] is a list"),
            ({"chunk-rows": 0}, "bad-value", "between 1 and"),
            ({"chunk-rows": "10"}, "wrong-type", "whole number"),
            ({"chunk-rows": True}, "wrong-type", "a boolean"),
            ({"parallelism": 1025}, "bad-value", "1024"),
            ({"parallelism": 1.5}, "wrong-type", "parallelism"),
            ({"priority": 5000}, "bad-value", "priority"),
            ({"delay": 5}, "wrong-type", "5s"),
            ({"delay": False}, "wrong-type", "a boolean"),
            ({"delay": "5 parsecs"}, "bad-value", "PT5S"),
            ({"delay": "-PT5S"}, "bad-value", "not a duration"),
        ]
    ),
]


@pytest.mark.parametrize(("message", "code", "word"), BAD)
def test_a_signal_is_refused_and_the_sender_told_why(message, code, word):
    value = b"not json" if message == "text" else message
    found = answer(value)
    assert isinstance(found, Rejection)
    assert found.code == code
    assert found.hint
    assert word in f"{found.message}; {found.hint}"
    assert found.id == ("s1" if isinstance(message, dict) else "signals-0-17")
    assert not SCHEMA.is_valid(message)


# A schema cannot say these.
@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        ({"data-collections": ["public.(a"]}, "bad-regex", "not a regular expression"),
        ({"data-collections": [r"public.\p{Greek}"]}, "unsupported-regex", "Greek"),
        (
            {"additional-conditions": [{"data-collection": "[", "filter": "a"}]},
            "bad-regex",
            "additional-conditions[0].data-collection",
        ),
        (
            {
                "additional-condition": "a",
                "additional-conditions": [{"data-collection": "a", "filter": "b"}],
            },
            "bad-value",
            "both",
        ),
        ({"keys": [1, [1, 2]]}, "bad-value", "keys[1]"),
        ({"keys": [{"id": 1}, {"ident": 1}]}, "bad-value", "keys[1]"),
        ({"keys": [{"id": 1}, 1]}, "bad-value", "keys[1]"),
        ({"delay": "P1Y"}, "bad-value", "PT5S"),
        ({"delay": "9" * 400 + "d"}, "bad-value", "not a duration"),
    ],
)
def test_what_is_refused_beyond_the_schema(data, code, word):
    found = execute(**data)
    assert isinstance(found, Rejection)
    assert (found.id, found.code) == ("s1", code)
    assert word in f"{found.message}; {found.hint}"


@pytest.mark.parametrize(
    ("key", "code", "word"),
    [
        (None, "no-key", "shop"),
        (b"", "no-key", "shop"),
        (b"other", "other-pipeline", "other"),
        (b'"shop"', "other-pipeline", "plain text"),
        (b"\xff", "other-pipeline", "shop"),
    ],
)
def test_the_key_is_the_pipelines_name(key, code, word):
    found = answer(signal("pause-snapshot", {}), key=key)
    assert (found.id, found.code) == ("s1", code)
    assert word in f"{found.message}; {found.hint}"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        b"\xff",
        b"null",
        b"7",
        b'{"type":"' + b"\xff" * 3,
        b"[" * 100_000,
        b"1e" + b"9" * 30,
    ],
)
def test_what_is_no_json_object_is_refused_under_the_id_of_its_place(value):
    found = answer(value)
    assert found.id == "signals-0-17"
    assert found.code in {"not-json", "wrong-type"}


def test_data_that_is_text_must_be_an_object():
    assert answer(signal("stop-snapshot", "{")).code == "not-json"
    assert answer(signal("stop-snapshot", "[]")).code == "wrong-type"
    assert answer(signal("execute-snapshot", '{"x":1}')).code == "unknown-field"


@pytest.mark.parametrize(
    ("own", "shown", "code"),
    [
        (17, "17", "wrong-type"),
        (True, "signals-0-17", "wrong-type"),
        ([1], "signals-0-17", "wrong-type"),
        (" ", "signals-0-17", "bad-value"),
        ("x" * 256, "x" * 256, "bad-value"),
    ],
)
def test_an_odd_id(own, shown, code):
    found = answer({"id": own, "type": "pause-snapshot", "data": {}})
    assert isinstance(found, Rejection)
    assert (found.id, found.code) == (shown, code)


def test_the_longest_id():
    assert answer({"id": "x" * 255, "type": "pause-snapshot"}) == PauseSnapshot("x" * 255)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[7]", [PrimaryKey((7,))]),
        ('["a", "b"]', [PrimaryKey(("a",)), PrimaryKey(("b",))]),
        ('[[1, "x"]]', [PrimaryKey((1, "x"))]),
        ('[{"b": 2, "a": true}]', [PrimaryKey((2, True), ("b", "a"))]),
        (
            "[123456789012345678.123456789]",
            [PrimaryKey((Decimal("123456789012345678.123456789"),))],
        ),
        ("[123456789012345678901234567890]", [PrimaryKey((123456789012345678901234567890,))]),
    ],
)
def test_keys_keep_every_digit(written, expected):
    text = f'{{"data-collections":["a.b"],"keys":{written}}}'
    assert list(answer(signal("execute-snapshot", text)).keys) == expected


def test_a_rejection_never_shows_a_key_or_a_filter():
    condition = {"data-collection": "a", "filter": "secret", "x": 1}
    for data in (
        {"keys": ["secret", None]},
        {"keys": ["secret", ["secret", 1]]},
        {"additional-conditions": [condition]},
        {"additional-condition": "secret", "additional-conditions": [condition | {"x": None}]},
    ):
        found = execute(**data)
        assert isinstance(found, Rejection)
        assert "secret" not in f"{found.message} {found.hint}"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("2m", 120), ("0", 0), ("PT5S", 5), ("p1dT2h", 93_600), ("PT1.5S", 1.5)],
)
def test_delays(written, seconds):
    assert execute(delay=written).delay == timedelta(seconds=seconds)


def test_the_bounds_are_those_of_the_configuration():
    SnapshotConfig(chunk_rows=fields.MAX_CHUNK_ROWS, parallelism=fields.MAX_PARALLELISM)
    for name, most in (("chunk_rows", fields.MAX_CHUNK_ROWS), ("parallelism", 1024)):
        with pytest.raises(ValidationError):
            SnapshotConfig(**{name: most + 1})
        assert isinstance(execute(**{name.replace("_", "-"): most}), ExecuteSnapshot)


FIELDS = [*EXECUTE, "type", "additional-conditions", "additional-condition", "surrogate-key",
          "keys", "chunk-rows", "parallelism", "delay", "priority", "id", "data-collection",
          "filter"]  # fmt: skip

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()

LEAVES |= st.sampled_from(["incremental", "blocking", "5s", "PT1S", "public.a", "(", "\\p{X}"])

JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)

SIGNALS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | JSON},
    optional={
        "id": st.text() | JSON,
        "data": st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON | JSON.map(json.dumps),
    },
)


def sound(found):
    assert isinstance(found, ANSWERS)
    assert found.id.strip()
    if isinstance(found, Rejection):
        assert found.code
        assert found.message
        assert found.hint
    if isinstance(found, ExecuteSnapshot):
        found.filters_of(["public.a"])
    if isinstance(found, ExecuteSnapshot | StopSnapshot):
        matching(found.data_collections, TABLES)


@given(st.none() | st.binary(), st.none() | st.binary())
def test_nothing_raises_on_any_bytes(key, value):
    sound(read(key, value, pipeline="shop", unnamed="u"))


@given(SIGNALS)
def test_nothing_raises_on_what_looks_like_a_signal(message):
    sound(answer(message))


@given(st.sampled_from(GOOD), st.data())
def test_nothing_raises_on_a_damaged_signal(good, data):
    value = bytearray(bytes_of(good[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    sound(answer(bytes(value)))


@given(SIGNALS)
def test_what_the_schema_and_the_reader_say_of_types_agrees(message):
    """What is understood fits the schema; nulls and text of an object aside."""
    found = answer(message)
    if not isinstance(found, Rejection) and b"null" not in bytes_of(message):
        SCHEMA.validate(message)


def test_the_signal_of_the_page_is_one():
    text = (Path(__file__).parents[3] / "docs" / "signals.md").read_text()
    message = json.loads(
        text.partition("## execute-snapshot")[2].split("```json\n")[1].split("```")[0]
    )
    SCHEMA.validate(message)
    found = answer(message)
    assert isinstance(found, ExecuteSnapshot)
    assert found.filters_of(["public.orders"])["public.orders"] == "status = 'open'"
    tables = ["public.order_items_2024", "public.orders"]
    assert set(matching(found.data_collections, tables).tables) == set(tables)
