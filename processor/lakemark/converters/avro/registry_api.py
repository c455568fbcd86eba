"""The two ways in which registries are asked for a schema: Confluent's API, and Apicurio's own.

Confluent's is spoken by confluent-kafka's client, without its retries: `registry` has those for
both. Apicurio has that API, too, but resolves one kind of its ids there; its own has them all.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import httpx

from lakemark.converters.avro.registry_login import REFUSED, Tokens, verification
from lakemark.converters.avro.registry_settings import COMPATIBLE, RegistrySettings
from lakemark.converters.avro.schema_source import (
    SchemaNotFoundError,
    SchemaReference,
    SchemaRefusedError,
)
from lakemark.errors import DependencyError, LakemarkError
from lakemark.settings.masking import foreign

UNAVAILABLE: Final = "registry-unavailable"
_AVRO: Final = "AVRO"
_NO_GROUP: Final = "default"
"""Apicurio's name of the group of artifacts that have none."""
_REFUSALS: Final = frozenset({401, 403})
_MISSING: Final = 404
_UNTAKEN: Final = frozenset({400, 409, 422})  # no schema, not compatible, versions are closed
_UNSAID: Final = frozenset({404, 405})  # it has no such question
_INCOMPATIBLE: Final = "it is not compatible with the newest one there"
_CODES_MISSING: Final = range(40401, 40404)  # no subject, no version, no schema
_THING_MISSING: Final = re.compile(r"\w+NotFoundException")  # without a thing: a path is unknown
_PAGE: Final = 500  # artifacts that Apicurio lists at once, at most

T = TypeVar("T")


class RegistryPart(NamedTuple):
    """A schema that another one needs, by its place in the registry.

    Attributes:
        subject: its subject, or Apicurio's id of an artifact.
        version: of that.
        group: of Apicurio; empty in Confluent's API.
    """

    subject: str
    version: str
    group: str = ""


class FoundSchema(NamedTuple):
    """A schema as its registry has it.

    Attributes:
        text: JSON.
        needs: says which schemas it needs; it may ask the registry.
    """

    text: str
    needs: Callable[[], tuple[RegistryPart, ...]]


class MissingSchemaError(SchemaNotFoundError):
    """A registry has no such schema; it may be on its way there."""


class RegistryApi(Protocol):
    """One way to ask a registry. Every call ends after `RegistrySettings.timeout_s`.

    Raises (every method):
        MissingSchemaError: the registry has no such thing now.
        SchemaNotFoundError: it never has: what it has there is no Avro.
        DependencyError: it does not answer, not like a registry, or refuses us.
    """

    def schema(self, reference: SchemaReference) -> FoundSchema:
        """Return an Avro schema by its number."""

    def part(self, part: RegistryPart) -> FoundSchema:
        """Return an Avro schema by its place."""

    def subjects(self) -> frozenset[str]:
        """Return the names under which there are schemas."""

    def newest(self, subject: str) -> FoundSchema:
        """Return the newest schema of a subject."""

    def register(self, subject: str, text: str) -> int:
        """Return the number of a schema, which the subject has then.

        Raises:
            SchemaRefusedError: the registry does not take it.
        """

    def objection(self, subject: str, text: str) -> str | None:
        """Return why it would not take a schema as the newest of a subject that it has.

        Returns:
            Empty where it would; None where it cannot say.
        """

    def registered(self, subject: str, text: str) -> int:
        """Return the number of a schema that the subject has already."""


def api_of(settings: RegistrySettings) -> RegistryApi:
    """Return the API that a registry is spoken to by; it connects with the first call."""
    return CompatibleApi(settings) if settings.api == "compatible" else ApicurioApi(settings)


class CompatibleApi:
    """Confluent's API, see `RegistryApi`."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings

    @cached_property
    def _client(self) -> Any:
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 - slow, and seldom needed
            SchemaRegistryClient,
        )

        settings, login, tls = self._settings, self._settings.login, self._settings.tls
        if_any = {
            "ssl.ca.location": tls.ca,
            "ssl.certificate.location": tls.certificate,
            "ssl.key.location": tls.key,
            "ssl.key.password": tls.password,
            "basic.auth.user.info": f"{login.user}:{login.password}" if login.user else "",
        }
        conf: dict[str, Any] = {name: value for name, value in if_any.items() if value}
        conf |= {"url": ",".join(settings.urls), "timeout": settings.timeout_s, "max.retries": 0}
        if login.token or login.endpoint:
            conf["bearer.auth.credentials.source"] = "CUSTOM"
            conf["bearer.auth.custom.provider.function"] = Tokens(settings).fields
            conf["bearer.auth.custom.provider.config"] = {}
        return SchemaRegistryClient(conf)

    @cached_property
    def _apicurio(self) -> "ApicurioApi | None":
        """Apicurio's own API at the same address, if this is Apicurio."""
        return ApicurioApi(self._settings) if "/apis/ccompat/" in self._settings.urls[0] else None

    def schema(self, reference: SchemaReference) -> FoundSchema:
        """See `RegistryApi`."""
        if reference.kind == "id":
            return self._asked(lambda: self._client.get_schema(reference.number))
        if self._apicurio is not None:
            return self._apicurio.schema(reference)
        raise SchemaNotFoundError(
            f"the record names a schema by Apicurio's {reference.kind} id {reference.number}, and"
            f" {self._settings.urls[0]} is no registry of Apicurio",
            hint="set source.converter: {apicurio.registry.url: …} to the registry that has it",
        )

    def part(self, part: RegistryPart) -> FoundSchema:
        """See `RegistryApi`."""
        return self._asked(lambda: self._client.get_version(part.subject, int(part.version)).schema)

    def subjects(self) -> frozenset[str]:
        """See `RegistryApi`."""
        with _translated(self._settings):
            return frozenset(_within(self._settings, self._client.get_subjects))

    def newest(self, subject: str) -> FoundSchema:
        """See `RegistryApi`."""
        return self._asked(lambda: self._client.get_latest_version(subject).schema)

    def register(self, subject: str, text: str) -> int:
        """See `RegistryApi`."""
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 - see `_client`
            Schema,
            SchemaRegistryError,
        )

        schema = Schema(text, _AVRO)
        self._client.clear_caches()  # it would answer instead of a registry that was set up anew
        with _translated(self._settings):
            try:
                question = partial(self._client.register_schema, subject, schema)
                return int(_within(self._settings, question))
            except SchemaRegistryError as error:
                if error.http_status_code in _UNTAKEN:
                    raise _refused(self._settings, subject, error.error_message) from error
                raise

    def objection(self, subject: str, text: str) -> str | None:
        """See `RegistryApi`."""
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 - see `_client`
            Schema,
            SchemaRegistryError,
        )

        if self._apicurio is not None:  # in 3.x this API compares also where no rule asks for it
            return self._apicurio.objection(subject, text)
        schema = Schema(text, _AVRO)
        with _translated(self._settings):
            try:
                question = partial(self._client.test_compatibility, subject, schema)
                return "" if _within(self._settings, question) else _INCOMPATIBLE
            except SchemaRegistryError as error:
                if error.http_status_code in _UNTAKEN:
                    return foreign(error.error_message)
                if error.http_status_code in _UNSAID:
                    return None
                raise

    def registered(self, subject: str, text: str) -> int:
        """See `RegistryApi`."""
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - see `_client`

        schema = Schema(text, _AVRO)
        self._client.clear_caches()
        with _translated(self._settings):
            question = partial(self._client.lookup_schema, subject, schema)
            return int(_within(self._settings, question).schema_id)

    def _asked(self, question: Callable[[], Any]) -> FoundSchema:
        with _translated(self._settings):
            schema = _within(self._settings, question)
            kind = schema.schema_type or _AVRO
            if kind != _AVRO:
                raise _no_avro(kind)
            parts = (RegistryPart(r.subject, str(r.version)) for r in schema.references or ())
            needs = tuple(parts)
            return FoundSchema(str(schema.schema_str), lambda: needs)


class ApicurioApi:
    """Apicurio's own API, of 2.x or 3.x, see `RegistryApi`."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        before, _, version = settings.urls[0].partition("/apis/ccompat/")
        self._url = f"{before}/apis/registry/v2" if version else settings.urls[0]
        self._is_old = self._url.endswith("/v2")

    @cached_property
    def _client(self) -> httpx.Client:
        settings, login = self._settings, self._settings.login
        auth: Any = (login.user, login.password) if login.user else None
        if login.token or login.endpoint:
            auth = Tokens(settings).signed
        return httpx.Client(
            base_url=self._url,
            auth=auth,
            timeout=settings.timeout_s,
            verify=verification(self._url, settings.tls),
        )

    def schema(self, reference: SchemaReference) -> FoundSchema:
        """See `RegistryApi`."""
        kind = self._settings.numbers if reference.kind == "id" else reference.kind
        return self._found(f"ids/{kind}Ids/{reference.number}")

    def part(self, part: RegistryPart) -> FoundSchema:
        """See `RegistryApi`."""
        path = f"{self._artifact(part.subject, part.group)}/versions/{quote(part.version, safe='')}"
        return self._found(path, "" if self._is_old else "/content")

    def subjects(self) -> frozenset[str]:
        """See `RegistryApi`."""
        found: set[str] = set()
        for page in range(1_000):
            query = {"limit": _PAGE, "offset": page * _PAGE}
            artifacts = self._get("search/artifacts", query).json()["artifacts"]
            found.update(map(_subject_of, artifacts))
            if len(artifacts) < _PAGE:
                break
        return frozenset(found)

    def newest(self, subject: str) -> FoundSchema:
        """See `RegistryApi`."""
        artifact = self._artifact(subject)
        if self._is_old:
            return self._found(artifact)
        return self._found(f"{artifact}/versions/branch=latest", "/content")

    def register(self, subject: str, text: str) -> int:
        """See `RegistryApi`."""
        group, _, artifact_id = subject.rpartition("/")
        path = f"groups/{quote(group or _NO_GROUP, safe='')}/artifacts"
        number = f"{self._settings.numbers}Id"
        if self._is_old:
            headers = {
                "X-Registry-ArtifactId": artifact_id,
                "X-Registry-ArtifactType": _AVRO,
                "Content-Type": "application/json",
            }
            query, body = {"ifExists": "RETURN_OR_UPDATE"}, text.encode()
        else:
            headers = {"Content-Type": "application/json"}
            content = {"content": text, "contentType": "application/json"}
            artifact = {
                "artifactId": artifact_id,
                "artifactType": _AVRO,
                "firstVersion": {"content": content},
            }
            query, body = {"ifExists": "FIND_OR_CREATE_VERSION"}, json.dumps(artifact).encode()
        post = partial(self._client.post, path, params=query, headers=headers, content=body)
        with _translated(self._settings):
            answer = _within(self._settings, post)
            if answer.status_code in _UNTAKEN:
                raise _refused(self._settings, subject, _said(answer))
            _require_success(self._url, answer.status_code)
            told = answer.json()
            return int((told if self._is_old else told["version"])[number])

    def objection(self, subject: str, text: str) -> str | None:
        """See `RegistryApi`."""
        place, headers = self._artifact(subject), {"Content-Type": "application/json"}
        if self._is_old:
            ask = partial(self._client.put, f"{place}/test", headers=headers, content=text.encode())
        else:
            version = {"content": {"content": text, "contentType": "application/json"}}
            path, query = f"{place}/versions", {"dryRun": "true"}
            ask = partial(self._client.post, path, params=query, json=version)
        with _translated(self._settings):
            answer = _within(self._settings, ask)
            if answer.status_code in _UNTAKEN:
                return foreign(_said(answer)) or _INCOMPATIBLE
            if answer.status_code in _UNSAID:
                return None
            _require_success(self._url, answer.status_code)
            return ""

    def registered(self, subject: str, text: str) -> int:
        """See `RegistryApi`."""
        number = f"{self._settings.numbers}Id"
        headers = {"Content-Type": "application/json"}
        query: dict[str, str] = {}
        group, _, artifact_id = subject.rpartition("/")
        path = f"{self._artifact(subject)}/meta"
        if not self._is_old:
            query = {"groupId": group or _NO_GROUP, "artifactId": artifact_id}
            path = "search/versions"
        post = partial(self._client.post, path, params=query, headers=headers, content=text)
        with _translated(self._settings):
            told = self._taken(_within(self._settings, post)).json()
            if self._is_old:
                return int(told[number])
            if not told["versions"]:
                raise _unknown(self._url)
            return int(told["versions"][0][number])

    def _artifact(self, subject: str, group: str = "") -> str:
        """Return the path of an artifact, whose group may stand before it: see `subjects`."""
        own, _, name = subject.rpartition("/") if not group else ("", "", subject)
        return (
            f"groups/{quote(group or own or _NO_GROUP, safe='')}/artifacts/{quote(name, safe='')}"
        )

    def _found(self, path: str, content: str = "") -> FoundSchema:
        answer = self._get(f"{path}{content}")
        kind = answer.headers.get("X-Registry-ArtifactType", _AVRO)
        if kind != _AVRO:
            raise _no_avro(kind)
        return FoundSchema(answer.text, lambda: self._needs(path))

    def _needs(self, path: str) -> tuple[RegistryPart, ...]:
        found = self._get(f"{path}/references").json()
        return tuple(
            RegistryPart(one["artifactId"], str(one["version"]), one.get("groupId") or "")
            for one in found
        )

    def _get(self, path: str, query: dict[str, int] | None = None) -> httpx.Response:
        with _translated(self._settings):
            return self._taken(
                _within(self._settings, lambda: self._client.get(path, params=query))
            )

    def _taken(self, answer: httpx.Response) -> httpx.Response:
        """Return an answer that says what was asked for, or raise why it does not."""
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            raise _odd(self._url)
        if answer.status_code == _MISSING:
            if _THING_MISSING.fullmatch(str(answer.json().get("name"))):
                raise _unknown(self._url)
            raise _odd(self._url)
        _require_success(self._url, answer.status_code)
        return answer


def _subject_of(artifact: Mapping[str, Any]) -> str:
    """Return a listed artifact as `subjects` names it: of the default group by its id alone."""
    group = artifact.get("groupId") or _NO_GROUP
    name = str(artifact.get("artifactId") or artifact["id"])
    return name if group == _NO_GROUP else f"{group}/{name}"


def _said(answer: httpx.Response) -> str:
    """Return what a registry says of why it refuses something, with the causes that it lists."""
    told = answer.json()
    causes = [str(cause.get("description") or "") for cause in told.get("causes") or ()]
    return "; ".join(filter(None, [str(told.get("message") or told.get("title") or ""), *causes]))


def _refused(settings: RegistrySettings, subject: str, reason: str) -> SchemaRefusedError:
    return SchemaRefusedError(
        f"the schema registry {settings.urls[0]} does not take the newest schema of {subject}:"
        f" {foreign(reason)}",
        hint=f"make the change of the table compatible, or set another compatibility for {subject}"
        " there; then: lakemark table resume TABLE",
    )


def _within(settings: RegistrySettings, question: Callable[[], T]) -> T:
    """Return an answer, or raise `TimeoutError`.

    The clients' own limits are for each step: names, connections, the next bytes.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            answer.set_exception(error)

    threading.Thread(target=ask, name="registry", daemon=True).start()
    return answer.result(settings.timeout_s)


@contextmanager
def _translated(settings: RegistrySettings) -> Iterator[None]:
    """Make whatever a client raises one of our errors."""
    url = settings.urls[0]
    try:
        yield
    except LakemarkError:
        raise
    except TimeoutError as error:
        raise _away(url, f"no answer within {settings.timeout_s:g} s") from error
    except Exception as error:
        status = getattr(error, "http_status_code", 0)
        if status == _MISSING and getattr(error, "error_code", 0) in _CODES_MISSING:
            raise _unknown(url) from error
        if status:
            _require_success(url, status)
        raise _away(url, foreign(error) or type(error).__name__) from error


def _require_success(url: str, status: int) -> None:
    if status in _REFUSALS:
        raise DependencyError(
            f"the schema registry {url} refuses us with status {status}",
            code=REFUSED,
            hint="set a login in source.converter that may read schemas; a password's file is read"
            " again with every start",
        )
    if status == _MISSING:
        raise _odd(url)
    if not httpx.codes.is_success(status):
        raise _away(url, f"it answered with status {status}")


def _odd(url: str) -> DependencyError:
    return DependencyError(
        f"{url} does not answer like a schema registry",
        code=UNAVAILABLE,
        hint=f"set source.converter: {{{COMPATIBLE}: …}} to the address of its API",
    )


def _unknown(url: str) -> MissingSchemaError:
    return MissingSchemaError(f"the schema registry {url} has no such schema")


def _no_avro(kind: str) -> SchemaNotFoundError:
    return SchemaNotFoundError(
        f"the schema of the record is of the kind {kind}, not Avro",
        hint="have the connector write Avro, or leave the topic out",
    )


def _away(url: str, reason: str) -> DependencyError:
    return DependencyError(
        f"the schema registry {url} is away: {reason}",
        code=UNAVAILABLE,
        hint="start it, or set its address as it is reached from here in source.converter",
    )
