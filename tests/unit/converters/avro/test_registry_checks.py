"""The doctor's look at a registry, and the values that converters do not write as they are."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemark.converters.avro import registry_checks
from lakemark.converters.avro.check_names import CHECKS
from lakemark.converters.avro.lost_values import hidden_nulls, losses
from lakemark.converters.avro.registry import RegistrySource
from lakemark.converters.avro.registry_settings import settings_of
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.errors import DependencyError
from lakemark.model.decoding import ConverterOptions
from lakemark.model.findings import Finding, Verdict
from lakemark.settings.layers import SetTo
from tests.kit.registry_server import ScriptedRegistry, serving

TOPIC = "shop.public.orders"


def envelope(*columns: dict) -> dict:
    value = {"type": "record", "name": "Value", "fields": list(columns)}
    return {
        "type": "record", "name": "Envelope", "namespace": TOPIC,
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
        ],
    }  # fmt: skip


ID = {"name": "id", "type": "int"}
PLAIN = {"name": "name", "type": ["null", "string"], "default": None}
HIDING = {"name": "score", "type": [{"type": "int", "connect.default": 7}, "null"], "default": 7}
NOT_NULL = {"name": "kind", "type": {"type": "string", "connect.default": "x"}, "default": "x"}


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with serving() as served:
        served.add(7, envelope(ID, PLAIN, HIDING, NOT_NULL))
        served.subjects = {f"{TOPIC}-value": [7], f"{TOPIC}-key": [7]}
        yield served


def options(registry: ScriptedRegistry, folder: Path, api: str = "", **more: str):
    setting = "apicurio.registry.url" if "/apis/registry/" in api else "schema.registry.url"
    own = (("registry.folder", str(folder)), ("registry.timeout", "5s"), ("registry.grace", "0"))
    value = ((setting, f"{registry.url}{api}"), *more.items())
    return ConverterOptions(value=value, own=own)


def of(findings: list[Finding], check: str) -> list[tuple[str, str]]:
    return [(f.verdict, f.reason) for f in findings if f.check == check]


@pytest.mark.parametrize("api", ["", "/apis/ccompat/v7", "/apis/registry/v2", "/apis/registry/v3"])
def test_a_registry_that_is_as_it_should_be(registry, tmp_path, api):
    found = registry_checks.examine(options(registry, tmp_path, api), [TOPIC])
    assert of(found, "schema registry") == [(Verdict.OK, "answers, and has schemas of 2 subjects")]
    assert of(found, "subject") == [(Verdict.OK, "has schemas")]
    assert of(found, "schema copies")[0][0] is Verdict.OK
    assert {f.check for f in found} == {*CHECKS}


@pytest.mark.parametrize("api", ["", "/apis/registry/v2"])
def test_more_subjects_than_are_listed_at_once(registry, tmp_path, api):
    registry.subjects |= {f"a{number}-value": [7] for number in range(1200)}
    found = registry_checks.examine(options(registry, tmp_path, api), [TOPIC])
    assert "1,202 subjects" in of(found, "schema registry")[0][1]
    assert of(found, "subject") == [(Verdict.OK, "has schemas")]


APIS = pytest.mark.parametrize(
    "api", ["", "/apis/ccompat/v7", "/apis/registry/v2", "/apis/registry/v3"]
)
CLEAN = "clean.public.orders"


@APIS
def test_the_newest_schemas_are_tried_on_the_subjects_that_would_get_them(registry, tmp_path, api):
    told = options(registry, tmp_path, api)
    topics = {TOPIC: CLEAN, "shop.public.empty": "clean.public.empty"}
    assert registry_checks.examine_output(told, told, topics) == [], "there is nothing yet"
    registry.add(8, envelope(ID))
    registry.subjects |= {f"{CLEAN}-{side}": [8] for side in ("key", "value")}
    (found,) = registry_checks.examine_output(told, told, topics)
    assert (found.check, found.subject, found.verdict) == ("output subject", CLEAN, Verdict.OK)
    registry.strict = {f"{CLEAN}-value"}
    (found,) = registry_checks.examine_output(told, told, topics)
    assert (found.subject, found.verdict) == (f"{CLEAN}-value", Verdict.ERROR)
    assert f"newest schema of {TOPIC} (" in found.reason
    assert found.mend.startswith(f"set another compatibility for {CLEAN}-value")
    registry.subjects[f"{CLEAN}-value"].append(7)  # the one that would be registered
    assert [f.verdict for f in registry_checks.examine_output(told, told, topics)] == [Verdict.OK]
    registry.add(9, "no schema")
    registry.subjects |= {f"{TOPIC}-{side}": [9] for side in ("key", "value")}
    assert registry_checks.examine_output(told, told, topics) == [], "what is no Avro is not tried"
    registry.subjects |= {f"{TOPIC}-{side}": [7] for side in ("key", "value")}
    registry.compares = False
    assert registry_checks.examine_output(told, told, topics) == [], "it cannot say"


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("", [f"{CLEAN}-key", f"{CLEAN}-value"]),
        ("SimpleTopicIdStrategy", [CLEAN, CLEAN]),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", ["", ""]),
        ("TopicRecordNameStrategy", ["", ""]),
    ],
)
def test_the_subjects_of_topics_that_are_written(registry, tmp_path, strategy, names):
    registry.subjects[f"{CLEAN}-key"] = [7]
    own = options(registry, tmp_path)
    told = {f"{side}.subject.name.strategy": strategy for side in ("key", "value") if strategy}
    own = ConverterOptions(value=own.value, own=(*own.own, *told.items()))
    found = registry_checks.subjects(own, [CLEAN])
    assert [subject.name for subject in found] == names
    short = strategy.rpartition(".")[2] or "TopicNameStrategy"
    assert {(subject.topic, subject.strategy) for subject in found} == {(CLEAN, short)}
    assert [s.side for s in found] == ["key", "value"]
    assert [s.exists for s in found] == [name == f"{CLEAN}-key" for name in names]


APICURIO = pytest.mark.parametrize("api", ["/apis/registry/v2", "/apis/registry/v3"])
GROUP = "apicurio.registry.artifact.group-id"
STRATEGY = "apicurio.registry.artifact-resolver-strategy"


@APICURIO
@pytest.mark.parametrize(
    ("told", "subject"),
    [
        ({}, f"{TOPIC}-value"),
        ({GROUP: "default"}, f"{TOPIC}-value"),
        ({GROUP: "shop"}, f"shop/{TOPIC}-value"),
        ({GROUP: "shop", STRATEGY: "SimpleTopicIdStrategy"}, f"shop/{TOPIC}"),
        ({STRATEGY: "RecordIdStrategy"}, f"{TOPIC}/Envelope"),
        ({STRATEGY: "TopicRecordIdStrategy"}, f"{TOPIC}/{TOPIC}-Envelope"),
    ],
)
def test_a_subject_is_that_of_the_converter_s_group(registry, tmp_path, api, told, subject):
    """And none of another group that is called alike: its schemas are another topic's."""
    own = options(registry, tmp_path, api, **told)
    registry.subjects = {subject: [7]}
    found = registry_checks.examine(own, [TOPIC])
    assert of(found, "subject") == [(Verdict.OK, "has schemas")]
    assert "NULL in score" in of(found, "hidden NULL")[0][1]
    registry.subjects = {f"other/{subject.rpartition('/')[2]}": [7]}
    found = registry_checks.examine(own, [TOPIC])
    ((verdict, reason),) = of(found, "subject")
    assert verdict is Verdict.WARNING
    assert f"there is no {subject}:" in reason
    assert of(found, "hidden NULL") == []


@APICURIO
def test_schemas_of_a_group_are_tried_and_planned_there(registry, tmp_path, api):
    own = options(registry, tmp_path, api, **{GROUP: "shop"})
    own = ConverterOptions(key=own.value, value=own.value, own=own.own)
    registry.add(8, envelope(ID))
    registry.subjects = {
        f"shop/{TOPIC}-value": [7],
        f"shop/{CLEAN}-value": [8],
        f"{CLEAN}-key": [8],
    }
    assert [(s.name, s.exists) for s in registry_checks.subjects(own, [CLEAN])] == [
        (f"shop/{CLEAN}-key", False),
        (f"shop/{CLEAN}-value", True),
    ]
    registry.strict = {f"shop/{CLEAN}-value"}
    (found,) = registry_checks.examine_output(own, own, {TOPIC: CLEAN})
    assert (found.subject, found.verdict) == (f"shop/{CLEAN}-value", Verdict.ERROR)


def test_a_topic_without_schemas_is_named(registry, tmp_path):
    found = registry_checks.examine(options(registry, tmp_path), [TOPIC, "shop.public.other"])
    (_, (verdict, reason)) = of(found, "subject")
    assert verdict is Verdict.WARNING
    assert "there is no shop.public.other-value" in reason


def test_columns_whose_null_is_hidden_are_named(registry, tmp_path):
    found = registry_checks.examine(options(registry, tmp_path), [TOPIC])
    assert of(found, "hidden NULL") == [
        (Verdict.WARNING, "NULL in score arrives as the column's default")
    ]
    switched = options(registry, tmp_path, **{"ignore.default.for.nullables": "true"})
    assert of(registry_checks.examine(switched, [TOPIC]), "hidden NULL") == []


def test_a_registry_that_was_set_up_anew_is_told_from_the_one_before(registry, tmp_path):
    told = options(registry, tmp_path)
    source = RegistrySource(settings_of(told))
    registry.add(8, {"type": "fixed", "name": "F", "size": 8})
    for number in (7, 8):
        source.schema(SchemaReference("id", number))
    del registry.ids[8]
    found = registry_checks.examine(told, [TOPIC])
    assert of(found, "schema copies") == [(Verdict.OK, "2 of them are what the registry says")]
    registry.add(7, json.dumps(json.loads(registry.ids[7]["schema"]), indent=1))
    assert of(registry_checks.examine(told, []), "schema copies")[0][0] is Verdict.OK
    registry.add(7, {"type": "fixed", "name": "F", "size": 9})
    ((verdict, reason),) = of(registry_checks.examine(told, []), "schema copies")
    assert verdict is Verdict.ERROR
    assert "id 7" in reason


def test_a_registry_that_refuses_is_an_error(registry, tmp_path):
    registry.login = {"Authorization": "Bearer x"}
    with pytest.raises(DependencyError) as found:
        registry_checks.examine(options(registry, tmp_path), [TOPIC])
    assert found.value.code == "registry-refused"


# -- settings of converters, and schemas -----------------------------------------------------------


def paths(**told: str) -> dict[str, bool]:
    found = [*losses(ConverterOptions(value=tuple(told.items())))]
    assert all(isinstance(p.hint, SetTo) for p in found if p.path != "value.converter")
    return {p.path: p.warning for p in found}


def test_settings_with_which_values_are_lost():
    url = {"schema.registry.url": "http://r:8081"}
    null, kept = (
        "value.converter.ignore.default.for.nullables",
        {"ignore.default.for.nullables": "true"},
    )
    assert paths(**url) == {null: True}
    assert paths(**url, **kept) == {}
    assert paths(**url, **kept, **{"connect.meta.data": "false"}) == {
        "value.converter.connect.meta.data": False
    }
    assert paths(**url, **kept, **{"use.latest.version": "true"}) == {
        "value.converter.use.latest.version": True
    }
    assert paths(**{"apicurio.registry.url": "http://r:8080/apis/registry/v2"}) == {
        "value.converter": True
    }
    assert [*losses(ConverterOptions())] == []


@pytest.mark.parametrize(
    "schema", [None, "string", [], {}, {"type": "record", "name": "x", "fields": []}]
)
def test_what_is_no_change_event_hides_nothing(schema):
    assert hidden_nulls(schema) == []
