"""Schemas of real registries: by each kind of number, killed and back, come back empty."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry import SchemaReference as Needed
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from lakemark.converters.avro import registry as registries
from lakemark.converters.avro import registry_checks
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.avro.registry import RegistrySource
from lakemark.converters.avro.registry_api import api_of
from lakemark.converters.avro.registry_settings import RegistrySettings
from lakemark.converters.avro.schema_source import (
    SchemaNotFoundError,
    SchemaReference,
    SchemaRefusedError,
)
from lakemark.converters.converter import Departing
from lakemark.converters.json.converter import JsonConverter
from lakemark.errors import DependencyError
from lakemark.model.decoding import ConverterOptions
from lakemark.model.events import Learnt
from stack.registry import VERSIONS, Registry
from tests.kit.nightly import nightly
from tests.kit.servers import other_registry

pytestmark = pytest.mark.integration

USUAL, *OTHERS = VERSIONS
INNER = {"type": "enum", "name": "a.Kind", "symbols": ["A", "B"]}


@pytest.fixture(scope="module", params=[USUAL, *(pytest.param(v, marks=nightly) for v in OTHERS)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """A registry of its own, which a test may kill."""
    with other_registry(request.param, tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def told(server: Registry, tmp_path: Path) -> RegistrySettings:
    server.start()  # the test before may have killed it
    return RegistrySettings(
        "compatible", (server.compatible_url,), timeout_s=20, grace_s=0, folder=tmp_path
    )


@pytest.fixture
def own(told: RegistrySettings, server: Registry) -> RegistrySettings:
    return replace(told, api="apicurio", urls=(server.url,))


@pytest.fixture
def newest(own: RegistrySettings, server: Registry) -> RegistrySettings:
    if server.version == USUAL:
        pytest.skip("3.x has it")
    return replace(own, urls=(f"{server.address}/apis/registry/v3",))


def record(name: str, **types: object) -> str:
    fields = [{"name": field, "type": kind} for field, kind in types.items()]
    return json.dumps({"type": "record", "name": name, "namespace": "a", "fields": fields})


def registered(
    server: Registry, subject: str, text: str, *needs: tuple[str, str]
) -> dict[str, int]:
    """A schema under a subject; its global id and its content id."""
    references = [
        {"groupId": "default", "artifactId": needed, "version": "1", "name": name}
        for name, needed in needs
    ]
    answer = httpx.post(
        f"{server.url}/groups/default/artifacts",
        params={"ifExists": "RETURN_OR_UPDATE"},
        headers={
            "X-Registry-ArtifactId": subject,
            "X-Registry-ArtifactType": "AVRO",
            "Content-Type": "application/create.extended+json",
        },
        json={"content": text, "references": references},
    )
    answer.raise_for_status()
    return answer.json()


def test_a_schema_is_found_by_each_kind_of_number(server, told, own):
    text = record("R", x="long")
    registered(server, "before-value", text)
    ids = registered(server, "kinds-value", text)  # the same content, and another schema
    global_id, content_id = ids["globalId"], ids["contentId"]
    assert global_id != content_id
    newest = replace(own, urls=(f"{server.address}/apis/registry/v3",), folder=own.folder / "v3")
    for settings in (told, own, *([newest] if server.version != USUAL else [])):
        source = RegistrySource(settings)
        assert source.schema(SchemaReference("global", global_id)) == text
        assert source.schema(SchemaReference("content", content_id)) == text
    compatible = RegistrySource(told).schema(SchemaReference("id", content_id))
    assert json.loads(compatible) == json.loads(text), "3.3 leaves out the spaces there"
    assert RegistrySource(own).schema(SchemaReference("id", global_id)) == text
    other = RegistrySource(replace(own, numbers="content", folder=own.folder / "content"))
    assert other.schema(SchemaReference("id", content_id)) == text


def test_confluent_s_client_registers_what_is_read(server, told):
    client = SchemaRegistryClient({"url": server.compatible_url})
    text = record("C", x="string")
    number = client.register_schema("confluent-value", Schema(text, "AVRO"))
    assert json.loads(RegistrySource(told).schema(SchemaReference("id", number))) == json.loads(
        text
    )


def test_an_unknown_number_is_not_found_and_never_taken_for_a_registry_that_is_away(told, own):
    for settings in (told, own):
        for kind in ("id", "global", "content"):
            with pytest.raises(SchemaNotFoundError):
                RegistrySource(settings).schema(SchemaReference(kind, 987_654))


def test_what_is_no_api_is_no_answer(server, told, own, monkeypatch):
    monkeypatch.setattr(registries, "BACKOFF_S", 0.01)
    # Registry 2.6 answers to 3.x's paths as to any other that it has not: 404, and JSON.
    paths = ("/apis/no-such-api", *(["/apis/registry/v3"] if server.version == USUAL else []))
    for settings, path in itertools.product((told, own), paths):
        wrong = replace(settings, urls=(f"{server.address}{path}",))
        with pytest.raises(DependencyError):
            RegistrySource(wrong).schema(SchemaReference("id", 1))


def test_what_a_schema_needs_is_put_in(server, told, own):
    registered(server, "inner", json.dumps(INNER))
    text = record("Outer", k="a.Kind")
    ids = registered(server, "outer", text, ("a.Kind", "inner"))
    client = SchemaRegistryClient({"url": server.compatible_url})
    client.register_schema("inner-c", Schema(json.dumps(INNER), "AVRO"))
    number = client.register_schema(
        "outer-c", Schema(record("OuterC", k="a.Kind"), "AVRO", [Needed("a.Kind", "inner-c", 1)])
    )
    for source, reference in (
        (RegistrySource(own), SchemaReference("global", ids["globalId"])),
        (RegistrySource(own), SchemaReference("content", ids["contentId"])),
        (RegistrySource(told), SchemaReference("id", number)),
    ):
        (field,) = json.loads(source.schema(reference))["fields"]
        assert field["type"]["symbols"] == INNER["symbols"]


def test_a_registry_that_was_killed_and_comes_back_empty(server, told, own, monkeypatch):
    """What was read goes on, in new processes too; what was not waits, and is found at last."""
    monkeypatch.setattr(registries, "BACKOFF_S", 0.01)
    text = record("Kept", x="int")
    known = SchemaReference("global", registered(server, "kept-value", text)["globalId"])
    source = RegistrySource(own)
    assert source.schema(known) == text
    server.kill()
    for reader in (source, RegistrySource(own)):
        assert reader.schema(known) == text
        with pytest.raises(DependencyError) as found:
            reader.schema(SchemaReference("global", 987_654))
        assert found.value.code == "registry-unavailable"
    server.start()
    assert RegistrySource(own).schema(known) == text, "it is empty, and the disk is not"
    new = registered(server, "new-value", record("New", x="long"))["globalId"]
    fresh = replace(own, folder=own.folder / "fresh")
    assert json.loads(RegistrySource(fresh).schema(SchemaReference("global", new)))["name"] == "New"


@pytest.mark.parametrize("api", ["told", "own", "newest"])
def test_the_doctor_s_look(server, request, tmp_path, api):
    settings: RegistrySettings = request.getfixturevalue(api)
    nullable = json.dumps({
        "type": "record", "name": "Envelope", "namespace": "shop.public.orders",
        "fields": [{"name": "before", "type": ["null", {
            "type": "record", "name": "Value",
            "fields": [{"name": "score", "type": [{"type": "int", "connect.default": 7}, "null"], "default": 7}],
        }], "default": None}],
    })  # fmt: skip
    registered(server, "shop.public.orders-value", nullable)
    setting = "schema.registry.url" if api == "told" else "apicurio.registry.url"
    options = ConverterOptions(
        value=((setting, settings.urls[0]),), own=(("registry.folder", str(tmp_path / "d")),)
    )
    found = registry_checks.examine(options, ["shop.public.orders", "shop.public.none"])
    said = {(f.check, f.subject): f.reason for f in found}
    assert said["subject", "shop.public.orders"] == "has schemas"
    assert "there is no" in said["subject", "shop.public.none"]
    assert "score" in said["hidden NULL", "shop.public.orders"]


# -- schemas that we register, and a client of others that reads what was written by them --------


def connect_record(*fields: dict[str, object], **row: object) -> bytes:
    """A key in JSON that carries its schema."""
    told = [{"optional": True, **field} for field in fields]
    schema = {"type": "struct", "name": "shop.public.t.Value", "fields": told}
    return json.dumps({"schema": schema, "payload": row}).encode()


@pytest.mark.parametrize("api", ["compatible", "apicurio"])
def test_confluent_s_deserializer_reads_what_is_made_of_json(server, told, api):
    settings = {
        "compatible": {"schema.registry.url": server.compatible_url},
        "apicurio": {
            "apicurio.registry.url": server.url,
            "apicurio.registry.as-confluent": "true",
            "apicurio.registry.use-id": "contentId",
        },
    }[api]
    name = f"clean.{api}"
    options = ConverterOptions(own=(*settings.items(), ("registry.folder", str(told.folder))))
    converter, reader = AvroConverter(JsonConverter(), options=options), JsonConverter()
    raws = [
        connect_record({"field": "id", "type": "int64"}, {"field": "a b", "type": "string"},
                       **{"id": 1 << 40, "a b": "ä"}),
        connect_record({"field": "id", "type": "int64"}, {"field": "n", "type": "int32"},
                       id=None, n=-7),
    ]  # fmt: skip
    learnt = Learnt()
    departing = Departing("value", name, "public.t", reader, learnt, raws, [[], []])
    first, second = converter.issued(departing)
    read = AvroDeserializer(SchemaRegistryClient({"url": server.compatible_url}))
    context = SerializationContext(name, MessageField.VALUE)
    assert read(first, context) == {"id": 1 << 40, "a_b": "ä"}
    assert read(second, context) == {"id": None, "n": -7}
    subjects = httpx.get(f"{server.compatible_url}/subjects").json()
    assert f"{name}-value" in subjects
    again = AvroConverter(JsonConverter(), options=options)
    assert again.issued(departing) == [first, second], "another process writes the same"
    back = replace(departing, reader=again, raws=[first, second])
    assert [json.loads(data.payload) for data in again.opened(back, range(2)) if data] == [
        {"id": 1 << 40, "a b": "ä"}, {"id": None, "n": -7},
    ]  # fmt: skip


@pytest.mark.parametrize("api", ["told", "own", "newest"])
def test_a_schema_that_is_not_compatible_is_refused_in_the_registrys_words(server, request, api):
    subject, settings = f"refused.{api}-value", request.getfixturevalue(api)
    source = RegistrySource(settings)
    number = source.register(subject, record("R", x="long"))
    assert number == RegistrySource(settings).register(subject, record("R", x="long"))
    rule = {"compatibility": "FULL"}
    asked, other = api_of(settings), record("R", x="long", y="string")
    assert asked.objection(subject, other) == ""
    httpx.put(f"{server.compatible_url}/config/{subject}", json=rule).raise_for_status()
    assert asked.objection(subject, other), "the doctor asks before anything is registered"
    assert asked.objection(subject, record("R", x="long")) == ""
    assert len(SchemaRegistryClient({"url": server.compatible_url}).get_versions(subject)) == 1
    with pytest.raises(SchemaRefusedError) as refused:
        source.register(subject, record("R", x="long", y="string"))
    assert (refused.value.code, refused.value.retried) == ("output-schema-refused", True)
    assert subject in refused.value.message
    assert "y at /fields/1" in refused.value.message
    with pytest.raises(SchemaRefusedError):
        source.register(subject, '{"type": "record"}')
    httpx.put(f"{server.compatible_url}/config/{subject}", json={"compatibility": "NONE"})
    assert source.register(subject, record("R", x="long", y="string")) != number


@pytest.mark.parametrize("api", ["told", "own", "newest"])
def test_where_nothing_is_registered_what_is_there_is_found(server, request, api):
    subject, settings = f"looked.up.{api}-value", request.getfixturevalue(api)
    there = RegistrySource(settings).register(subject, record("R", x="long"))
    source = RegistrySource(replace(settings, registers=False))
    assert source.register(subject, record("R", x="long")) == there
    with pytest.raises(SchemaRefusedError, match=r"auto\.register\.schemas is false"):
        source.register(subject, record("R", x="long", y="string"))
    with pytest.raises(SchemaRefusedError, match=r"auto\.register\.schemas is false"):
        source.register(f"{subject}.other", record("R", x="long"))


@pytest.mark.parametrize("api", ["own", "newest"])
def test_a_schema_is_registered_in_the_group_that_the_converter_would_take(server, request, api):
    settings = request.getfixturevalue(api)
    subject, text = f"com.example.{api}/Key", record("Key", x="long")
    number = RegistrySource(settings).register(subject, text)
    there = f"{server.url}/groups/com.example.{api}/artifacts"
    assert [one["id"] for one in httpx.get(there).json()["artifacts"]] == ["Key"]
    source = RegistrySource(replace(settings, registers=False))
    assert source.register(subject, text) == number
    with pytest.raises(SchemaRefusedError):
        source.register("com.example.other/Key", text)
    RegistrySource(settings).register(f"none.{api}-value", text)
    names = api_of(settings).subjects()
    assert {subject, f"none.{api}-value"} <= names, "a name has its group, unless it is in none"
    assert "Key" not in names
    assert api_of(settings).newest(subject).text == text
