"""Schemas come from a registry once, and from the disk ever after."""

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakemark.converters.avro import registry as registries
from lakemark.converters.avro.registry import RegistrySource, source_of
from lakemark.converters.avro.registry_settings import (
    RegistryLogin,
    RegistrySettings,
    TlsFiles,
    settings_of,
)
from lakemark.converters.avro.schema_copies import SchemaCopies
from lakemark.converters.avro.schema_source import (
    RECHECK_S,
    SchemaNotFoundError,
    SchemaReference,
    SchemaRefusedError,
)
from lakemark.errors import DependencyError, LakemarkError
from lakemark.model.decoding import ConverterOptions
from tests.kit import token_server
from tests.kit.registry_server import ScriptedRegistry, basic, serving
from tests.kit.token_server import openssl

SEVEN = SchemaReference("id", 7)
LONG = '{"type": "long"}'
GRACE_S = 0.4


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with serving() as served:
        yield served


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once: no test is of their pauses."""
    monkeypatch.setattr(registries, "BACKOFF_S", 0.01)


@pytest.fixture
def told(registry: ScriptedRegistry, tmp_path: Path) -> RegistrySettings:
    return RegistrySettings(
        "compatible", (registry.url,), timeout_s=5, grace_s=0, folder=tmp_path / "schemas"
    )


def apicurio(told: RegistrySettings, version: str = "v2", **more: object) -> RegistrySettings:
    return replace(told, api="apicurio", urls=(f"{told.urls[0]}/apis/registry/{version}",), **more)


def refused(
    ask: Callable[[], object], kind: type[LakemarkError] = DependencyError
) -> LakemarkError:
    with pytest.raises(kind) as found:
        ask()
    return found.value


# -- where a schema comes from --------------------------------------------------------------------


def test_a_schema_is_asked_for_once_and_is_as_it_was_registered(registry, told):
    text = registry.add(7, '{"type":  "long"}')
    source = RegistrySource(told)
    assert [source.schema(SEVEN) for _ in range(3)] == [text] * 3
    assert registry.asked == ["/schemas/ids/7"]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_apicurio_s_ids_are_those_that_the_record_or_the_settings_say(registry, told, version):
    registry.global_ids = {7: '"int"', 8: '"bytes"'}
    registry.content_ids = {7: '"string"'}
    source = RegistrySource(apicurio(told, version))
    assert source.schema(SchemaReference("global", 7)) == '"int"'
    assert source.schema(SchemaReference("content", 7)) == '"string"'
    assert source.schema(SEVEN) == '"int"'
    other = RegistrySource(apicurio(told, version, numbers="content", folder=told.folder / "b"))
    assert other.schema(SEVEN) == '"string"'
    assert {path.rpartition("/ids/")[0] for path in registry.asked} == {f"/apis/registry/{version}"}


def test_apicurio_s_compatible_address_leads_to_its_other_ids(registry, told):
    registry.add(7, '"string"')
    registry.global_ids = {7: '"int"'}
    source = RegistrySource(replace(told, urls=(f"{registry.url}/apis/ccompat/v7",)))
    assert source.schema(SEVEN) == '"string"'
    assert source.schema(SchemaReference("global", 7)) == '"int"'
    error = refused(
        lambda: RegistrySource(told).schema(SchemaReference("global", 7)), SchemaNotFoundError
    )
    assert "is no registry of Apicurio" in error.message


def test_what_another_schema_has_is_put_in(registry, told):
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "long"}]}
    middle = {"type": "record", "name": "a.Middle", "fields": [{"name": "i", "type": "Inner"}]}
    outer = {"type": "record", "name": "b.Outer", "fields": [{"name": "m", "type": "a.Middle"}]}
    registry.add(5, inner)
    registry.add(6, middle, references=[{"name": "a.Inner", "subject": "in/ner", "version": 1}])
    registry.add(7, outer, references=[{"name": "a.Middle", "subject": "middle", "version": 1}])
    registry.subjects = {"in/ner": [5], "middle": [6]}
    registry.global_ids = {7: json.dumps(outer)}
    registry.references = {
        "ids/globalIds/7/references": [
            {"groupId": None, "artifactId": "middle", "version": "1", "name": "a.Middle"}
        ],
        "groups/default/artifacts/middle/versions/1/references": [
            {"groupId": "default", "artifactId": "in/ner", "version": "1", "name": "a.Inner"}
        ],
        "groups/default/artifacts/in/ner/versions/1/references": [],
        "groups/default/artifacts/in%2Fner/versions/1/references": [],
    }
    for settings in (told, apicurio(told)):
        schema = json.loads(RegistrySource(settings).schema(SEVEN))
        (field,) = schema["fields"]
        assert field["type"]["name"] == "Middle"
        assert field["type"]["fields"][0]["type"]["fields"] == inner["fields"]


def test_a_schema_of_another_kind_is_not_waited_for(registry, told):
    registry.add(7, 'syntax = "proto3";', schemaType="PROTOBUF")
    begun = time.monotonic()
    error = refused(
        lambda: RegistrySource(replace(told, grace_s=30)).schema(SEVEN), SchemaNotFoundError
    )
    assert "PROTOBUF" in error.message
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "text", ["no JSON", '{"fields": []}', '{"type": "x.Unknown"}', "[" * 9_999]
)
def test_what_is_no_schema_is_not_found(registry, told, text):
    registry.add(7, text)
    error = refused(lambda: RegistrySource(told).schema(SEVEN), SchemaNotFoundError)
    assert (error.code, "cannot be used" in error.message) == ("schema-not-found", True)


# -- while it is away -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_registry_that_fails_is_asked_four_times_and_never_a_reason_for_dead_letters(
    registry, told, status
):
    registry.status = status
    for settings, path in ((told, "/schemas/ids/7"), (apicurio(told), None)):
        registry.asked.clear()
        error = refused(lambda settings=settings: RegistrySource(settings).schema(SEVEN))
        assert (error.code, error.retried) == ("registry-unavailable", True)
        assert len(registry.asked) == registries.ATTEMPTS
        assert path is None or set(registry.asked) == {path}
    registry.status = 0
    text = registry.add(7, LONG)
    assert RegistrySource(told).schema(SEVEN) == text


def test_what_is_known_goes_on_while_the_registry_is_away(registry, told):
    text = registry.add(7, LONG)
    source = RegistrySource(told)
    source.schema(SEVEN)
    registry.status = 503
    assert source.schema(SEVEN) == text
    assert RegistrySource(told).schema(SEVEN) == text, "a new process reads it from the disk"
    refused(lambda: source.schema(SchemaReference("id", 8)))


def test_a_registry_that_nobody_runs_is_away(told):
    gone = replace(told, urls=("http://127.0.0.1:9",))
    for settings in (gone, apicurio(gone)):
        error = refused(lambda settings=settings: RegistrySource(settings).schema(SEVEN))
        assert error.code == "registry-unavailable"


def test_another_address_is_tried_where_there_are_several(registry, told):
    text = registry.add(7, LONG)
    several = replace(told, urls=("http://127.0.0.1:9", registry.url))
    assert RegistrySource(several).schema(SEVEN) == text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["late", "drips"])
def test_a_registry_that_hangs_is_given_up(registry, told, monkeypatch, how):
    monkeypatch.setattr(registries, "ATTEMPTS", 2)
    registry.delay_s, registry.drips = (60.0, False) if how == "late" else (0.0, True)
    for settings in (told, apicurio(told)):
        begun = time.monotonic()
        error = refused(
            lambda settings=settings: RegistrySource(replace(settings, timeout_s=0.3)).schema(SEVEN)
        )
        assert error.code == "registry-unavailable"
        assert time.monotonic() - begun < 20
    registry.drips = False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, "<html>"),
        (404, "{}"),
        (404, '{"name": "NotFoundException"}'),  # Apicurio's, for a path that it does not have
        (200, "<html>"),
        (200, "[]"),
        (301, ""),
    ],
)
def test_what_is_no_registry_loses_no_record(registry, told, status, body):
    """A wrong path answers 404 to everything: it must not make every record a dead letter."""
    registry.status, registry.body = status, body
    error = refused(lambda: RegistrySource(told).schema(SEVEN))
    assert error.code == "registry-unavailable"
    if status == 404 or body == "<html>":
        error = refused(lambda: RegistrySource(apicurio(told)).schema(SEVEN))
        assert "does not answer like a schema registry" in error.message


# -- an unknown number ----------------------------------------------------------------------------


def test_a_schema_that_comes_within_the_grace_time_is_waited_for(registry, told):
    for settings in (told, apicurio(told)):
        registry.asked.clear()

        def comes() -> None:
            while not registry.asked:
                time.sleep(0.005)
            registry.add(7, LONG)
            registry.global_ids[7] = LONG

        registry.ids.clear()
        registry.global_ids.clear()
        with ThreadPoolExecutor(1) as other:
            coming = other.submit(comes)
            assert RegistrySource(replace(settings, grace_s=20)).schema(SEVEN) == LONG
            coming.result()
        assert len(registry.asked) >= 2


def test_a_schema_that_does_not_come_is_not_found_and_not_waited_for_again(registry, told):
    source = RegistrySource(replace(told, grace_s=GRACE_S))
    begun = time.monotonic()
    error = refused(lambda: source.schema(SEVEN), SchemaNotFoundError)
    assert time.monotonic() - begun >= GRACE_S
    assert (error.code, error.retried) == ("schema-not-found", False)
    assert "no schema of the id 7" in error.message
    asked = len(registry.asked)
    refused(lambda: source.schema(SEVEN), SchemaNotFoundError)
    assert len(registry.asked) == asked, "nobody is asked again so soon"


@pytest.mark.slow
def test_after_a_wait_in_vain_other_unknown_numbers_are_asked_for_once(registry, told):
    source = RegistrySource(replace(told, grace_s=GRACE_S))
    refused(lambda: source.schema(SEVEN), SchemaNotFoundError)
    registry.asked.clear()
    begun = time.monotonic()
    for number in range(100, 120):
        refused(
            lambda number=number: source.schema(SchemaReference("id", number)), SchemaNotFoundError
        )
    assert len(registry.asked) == 20
    assert time.monotonic() - begun < 9 * GRACE_S
    registry.add(8, LONG)
    assert source.schema(SchemaReference("id", 8)) == LONG, "and those that are there are found"


def test_what_was_not_found_is_asked_for_again_later(registry, told, monkeypatch):
    source = RegistrySource(told)
    monkeypatch.setattr(registries, "_ABSENT_S", 0.0)
    refused(lambda: source.schema(SEVEN), SchemaNotFoundError)
    registry.add(7, LONG)
    assert source.schema(SEVEN) == LONG


def test_numbers_that_are_none_do_not_fill_the_memory(registry, told, monkeypatch):
    monkeypatch.setattr(registries, "_REMEMBERED", 3)
    source = RegistrySource(told)
    for number in range(10):
        refused(
            lambda number=number: source.schema(SchemaReference("id", number)), SchemaNotFoundError
        )
    assert len(source._absent) <= 3


# -- the disk -------------------------------------------------------------------------------------


def test_a_damaged_copy_is_fetched_again(registry, told):
    text = registry.add(7, LONG)
    RegistrySource(told).schema(SEVEN)
    (place,) = SchemaCopies(told.folder, registry.url).folder.iterdir()
    for damaged in ("", '{"type": "lo', "\udce4"):
        place.write_text(damaged, encoding="utf-8", errors="surrogateescape")
        assert RegistrySource(told).schema(SEVEN) == text
        assert place.read_text() == text


def test_registries_and_kinds_of_ids_are_kept_apart(registry, told):
    registry.add(7, '"string"')
    registry.global_ids, registry.content_ids = {7: '"int"'}, {7: '"bytes"'}
    at = f"{registry.url}/apis/ccompat/v7"
    for kind, text in (("id", '"string"'), ("global", '"int"'), ("content", '"bytes"')):
        for _ in range(2):
            source = RegistrySource(replace(told, urls=(at,)))
            assert source.schema(SchemaReference(kind, 7)) == text
    with serving() as other:
        other.add(7, '"long"')
        assert RegistrySource(replace(told, urls=(other.url,))).schema(SEVEN) == '"long"'


def test_a_folder_that_cannot_be_had_is_done_without(registry, told, tmp_path):
    text = registry.add(7, LONG)
    (tmp_path / "file").write_text("")
    settings = replace(told, folder=tmp_path / "file" / "schemas")
    assert RegistrySource(settings).schema(SEVEN) == text
    assert RegistrySource(settings).schema(SEVEN) == text
    assert len(registry.asked) == 2


def test_copies_that_others_may_have_written_are_not_believed(registry, told):
    copies = SchemaCopies(told.folder, registry.url)
    copies.keep(SEVEN, '"int"')
    copies.folder.chmod(0o777)
    text = registry.add(7, LONG)
    assert RegistrySource(told).schema(SEVEN) == text


def _keep(folder: Path, url: str, number: int) -> None:
    text = json.dumps({"type": "string", "doc": "x" * 20_000})
    for _ in range(50):
        SchemaCopies(folder, url).keep(SchemaReference("id", number % 2), text)


def test_several_processes_write_the_same_copies_and_none_is_ever_half(told):
    spawn = multiprocessing.get_context("fork")
    writers = [
        spawn.Process(target=_keep, args=(told.folder, told.urls[0], number)) for number in range(4)
    ]
    for writer in writers:
        writer.start()
    copies = SchemaCopies(told.folder, told.urls[0])
    places, lengths = [copies.folder / f"id-{number}.avsc" for number in (0, 1)], set()
    while any(writer.is_alive() for writer in writers):
        lengths |= {len(place.read_text()) for place in places if place.exists()}
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(lengths) == 1
    assert sorted(copies.kept()) == [SchemaReference("id", 0), SchemaReference("id", 1)]
    assert len(list(copies.folder.iterdir())) == 2, "nothing of what was half written is left"


@pytest.mark.slow
def test_threads_share_a_source(registry, told):
    for number in range(20):
        registry.add(number, {"type": "fixed", "name": f"F{number}", "size": number})
    source, together = RegistrySource(told), threading.Barrier(8)

    def ask(_: int) -> list[str]:
        together.wait(10)
        return [source.schema(SchemaReference("id", number)) for number in range(20)]

    with ThreadPoolExecutor(8) as pool:
        (found, *others) = pool.map(ask, range(8))
    assert [json.loads(text)["size"] for text in found] == [*range(20)]
    assert others == [found] * 7


# -- who we are -----------------------------------------------------------------------------------


def test_basic_authentication(registry, told):
    registry.login = basic("me", "hush:hush")
    text = registry.add(7, LONG)
    registry.global_ids = {7: text}
    login = RegistryLogin("me", "hush:hush")
    assert RegistrySource(replace(told, login=login)).schema(SEVEN) == text
    assert RegistrySource(apicurio(told, login=login)).schema(SEVEN) == text


def test_a_refused_login_is_said_at_once_and_not_tried_again(registry, told):
    registry.login = basic("me", "hush:hush")
    login = RegistryLogin("me", "wrong-4hush")
    for settings in (told, apicurio(told)):
        registry.asked.clear()
        error = refused(
            lambda settings=settings: RegistrySource(replace(settings, login=login)).schema(SEVEN)
        )
        assert (error.code, error.retried) == ("registry-refused", True)
        assert len(registry.asked) == 1, "asked again and again an account may be locked"
        assert "wrong-4hush" not in error.message + error.hint + repr(login)


def test_a_token_that_was_given(registry, told):
    registry.login = {"Authorization": "Bearer t0ken", "target-sr-cluster": "lsrc-1"}
    text = registry.add(7, LONG)
    registry.global_ids = {7: text}
    login = RegistryLogin(token="t0ken", headers=(("target-sr-cluster", "lsrc-1"),))
    assert RegistrySource(replace(told, login=login)).schema(SEVEN) == text
    assert RegistrySource(apicurio(told, login=login)).schema(SEVEN) == text


@pytest.mark.slow
def test_tokens_of_an_endpoint_whose_authority_is_ours_alone(registry, told, tmp_path):
    (folder := tmp_path / "tokens").mkdir()
    with token_server.serving(folder) as tokens:
        registry.add(7, LONG)
        registry.global_ids = {7: LONG, 8: LONG}
        login = RegistryLogin(
            endpoint=tokens.url,
            client_id=token_server.CLIENT,
            client_secret=token_server.SECRET,
            scope="registry",
        )
        trusted = replace(told, login=login, tls=TlsFiles(ca=str(folder / "ca.pem")))
        assert RegistrySource(trusted).schema(SEVEN) == LONG
        assert registry.headers["authorization"].startswith("Bearer ")
        source = RegistrySource(apicurio(trusted))
        assert source.schema(SEVEN) == source.schema(SchemaReference("id", 8)) == LONG
        assert (tokens.given, tokens.asked) == (2, ["registry"] * 2), "a token is used again"
        wrong = replace(trusted, login=replace(login, client_secret="wrong"))
        unseen = SchemaReference("id", 9)
        assert refused(lambda: RegistrySource(wrong).schema(unseen)).code == "registry-refused"
        untrusted = RegistrySource(replace(trusted, tls=TlsFiles()))
        assert refused(lambda: untrusted.schema(unseen)).code == "registry-unavailable"


@pytest.mark.slow
def test_tls_with_an_authority_of_our_own_and_a_certificate_of_the_client(told, tmp_path):
    for name in ("server", "client"):
        (folder := tmp_path / name).mkdir()
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem")),
            *("-out", str(folder / "ca.pem")),
            *(("-passout", "pass:hush") if name == "client" else ("-nodes",)),
        )
    server, client = str(tmp_path / "server" / "ca.pem"), str(tmp_path / "client" / "ca.pem")
    with serving(tls=tmp_path / "server", client_ca=Path(client)) as registry:
        registry.add(7, LONG)
        registry.global_ids = {7: LONG}
        known = TlsFiles(server, client, str(tmp_path / "client" / "key.pem"), "hush")
        strict = replace(told, urls=(registry.url,), tls=known)
        assert RegistrySource(strict).schema(SEVEN) == LONG
        assert RegistrySource(apicurio(strict)).schema(SEVEN) == LONG
        unseen = SchemaReference("id", 9)
        for tls in (TlsFiles(), TlsFiles(server), replace(known, ca="")):
            for settings in (strict, apicurio(strict)):
                source = RegistrySource(replace(settings, tls=tls))
                assert (
                    refused(lambda source=source: source.schema(unseen)).code
                    == "registry-unavailable"
                )


def test_one_source_serves_all_who_have_the_same_options(registry, tmp_path):
    own = (("schema.registry.url", registry.url), ("registry.folder", str(tmp_path)))
    options = ConverterOptions(own=own)
    assert source_of(options) is source_of(ConverterOptions(own=own))
    assert settings_of(options).folder == tmp_path


# -- schemas that we register ----------------------------------------------------------------------


def test_a_schema_is_registered_once_in_a_process_and_equal_ones_have_one_number(registry, told):
    source = RegistrySource(told)
    number = source.register("a-value", LONG)
    assert [source.register("a-value", LONG) for _ in range(3)] == [number] * 3
    assert len(registry.asked) == 1
    assert source.register("b-value", LONG) == number
    assert RegistrySource(told).register("a-value", LONG) == number
    assert source.register("a-value", '{"type":"int"}') != number
    assert {name: len(numbers) for name, numbers in registry.subjects.items()} == {
        "a-value": 2, "b-value": 1,
    }  # fmt: skip


def test_where_others_register_schemas_nothing_is_registered(registry, told):
    """As with `auto.register.schemas=false` of the connector's converter."""
    there = RegistrySource(told).register("a-value", LONG)
    source = RegistrySource(replace(told, registers=False))
    assert source.register("a-value", LONG) == there
    error = refused(lambda: source.register("b-value", LONG), SchemaRefusedError)
    assert (error.code, error.retried) == ("output-schema-refused", True)
    assert "b-value does not have the newest schema" in error.message
    assert "output.converter: {auto.register.schemas: true}" in error.hint
    assert registry.subjects == {"a-value": [there]}


def test_a_registry_that_comes_back_empty_gets_the_schema_again(registry, told, monkeypatch):
    """What is written by the number that it gave before would be another schema's there."""
    clock = [0.0]
    monkeypatch.setattr(registries, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    source = RegistrySource(told)
    before = source.register("a-value", LONG)
    registry.ids.clear()
    registry.subjects.clear()
    registry.add(before, '{"type":"int"}')
    assert source.register("a-value", LONG) == before, "nobody has asked"
    clock[0], registry.status = RECHECK_S, 503
    asked = len(registry.asked)
    assert [source.register("a-value", LONG) for _ in range(3)] == [before] * 3, "it is away"
    assert len(registry.asked) == asked + 1, "a batch does not wait for it"
    clock[0], registry.status = 2 * RECHECK_S, 0
    after = source.register("a-value", LONG)
    assert after != before
    assert registry.ids[after]["schema"] == LONG


@pytest.mark.parametrize("status", [409, 422])
@pytest.mark.parametrize("api", ["compatible", "apicurio"])
def test_a_registry_that_does_not_take_a_schema_says_why(registry, told, status, api):
    settings = told if api == "compatible" else apicurio(told)
    registry.status = status
    registry.body = json.dumps({"error_code": status, "message": "the field is new: x"})
    error = refused(lambda: RegistrySource(settings).register("a-value", LONG), SchemaRefusedError)
    assert (error.code, error.retried) == ("output-schema-refused", True)
    assert "a-value: the field is new: x" in error.message
    assert "lakemark table resume TABLE" in error.hint
    assert len(registry.asked) == 1, "to ask again does not help"


@pytest.mark.parametrize(
    ("status", "code", "times"),
    [(503, "registry-unavailable", 4), (401, "registry-refused", 1), (403, "registry-refused", 1)],
)
@pytest.mark.parametrize("api", ["compatible", "apicurio"])
def test_one_that_is_away_or_does_not_know_us_is_no_reason_to_stop_a_table(
    registry, told, status, code, times, api
):
    settings = told if api == "compatible" else apicurio(told)
    registry.status = status
    assert refused(lambda: RegistrySource(settings).register("a-value", LONG)).code == code
    assert len(registry.asked) == times
    registry.status = 0
