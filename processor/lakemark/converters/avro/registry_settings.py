"""The registry of a connector's schemas: its address, who we are, how long it is waited for.

All of it stands in the connector's converter settings, in the words of Confluent's converter or of
Apicurio's, but as Connect sees it. `source.converter` counts first: another address from here, a
login where Connect has a placeholder, and what only lakemark needs (`registry.…`, `ssl.…`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic_core import PydanticCustomError

from lakemark.converters.converter import OWN
from lakemark.errors import ConfigError, nearest
from lakemark.model.decoding import ConverterOptions, Side
from lakemark.settings.cache import cache_dir
from lakemark.settings.layers import Mistake
from lakemark.settings.units import parse_duration

Api = Literal["compatible", "apicurio"]
COMPATIBLE: Final = "schema.registry.url"
APICURIO: Final = "apicurio.registry.url"
USE_ID: Final = "apicurio.registry.use-id"

TIMEOUT: Final = "registry.timeout"
GRACE: Final = "registry.grace"
FOLDER: Final = "registry.folder"
REGISTERS: Final = ("auto.register.schemas", "apicurio.registry.auto-register")
"""Whether a converter registers schemas; that of Confluent's, and of Apicurio's."""
_DURATIONS: Final[Mapping[str, float]] = {TIMEOUT: 10.0, GRACE: 60.0}
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_TLS: Final = (*_FILES, "ssl.key.password")

# Each setting by its names, ours first: Confluent's converter, Apicurio's of 2.x and of 3.x.
_BASIC: Final = ("basic.auth.user.info", "schema.registry.basic.auth.user.info")
_USER: Final = ("apicurio.auth.username", "apicurio.registry.auth.username")
_PASSWORD: Final = ("apicurio.auth.password", "apicurio.registry.auth.password")
_TOKEN: Final = ("bearer.auth.token",)
_ENDPOINT: Final = (
    "bearer.auth.issuer.endpoint.url",
    "apicurio.auth.service.token.endpoint",
    "apicurio.registry.auth.service.token.endpoint",
)
_CLIENT: Final = (
    *("bearer.auth.client.id", "apicurio.auth.client.id"),
    "apicurio.registry.auth.client.id",
)
_SECRET: Final = (
    *("bearer.auth.client.secret", "apicurio.auth.client.secret"),
    "apicurio.registry.auth.client.secret",
)
_SCOPE: Final = (
    *("bearer.auth.scope", "apicurio.auth.client.scope"),
    "apicurio.registry.auth.client.scope",
)
_CLUSTER: Final = ("bearer.auth.logical.cluster",)
_POOL: Final = ("bearer.auth.identity.pool.id",)
_LOGIN: Final = (*_BASIC, *_USER, *_PASSWORD, *_TOKEN, *_ENDPOINT, *_CLIENT, *_SECRET)
_KNOWN: Final = frozenset(
    {COMPATIBLE, APICURIO, USE_ID, *_DURATIONS, FOLDER, *_TLS}
    | {*_LOGIN, *_SCOPE, *_CLUSTER, *_POOL}
    | {"basic.auth.credentials.source", "bearer.auth.credentials.source"}
)
_OURS: Final = re.compile(r"(schema\.)?registry\.|basic\.auth\.|bearer\.auth\.|ssl\.")


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """Proof of who we are. None, a user with a password, a token, or a client that gets tokens.

    Attributes:
        user: for basic authentication.
        password: its password.
        token: a bearer token that does not change.
        endpoint: where a client gets tokens by its credentials (OAuth 2.0).
        client_id: of that client.
        client_secret: its secret.
        scope: of the tokens.
        headers: what Confluent's cloud wants beside a token.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    endpoint: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for TLS, all PEM; empty where the usual ones do.

    Attributes:
        ca: authorities that are trusted, instead of the machine's.
        certificate: chain that proves who we are.
        key: its private key; may stand in `certificate`.
        password: of the key.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """A registry, and how it is spoken to.

    Attributes:
        api: which of the two it is spoken to by: Confluent's, which Apicurio has too, or
            Apicurio's own.
        urls: its addresses, the first one first.
        numbers: what the number before a record's bytes is where Apicurio's API is used.
        login: who we are.
        tls: files for TLS.
        timeout_s: for one request, in seconds, all in all.
        grace_s: for so long an unknown number is asked for again, in seconds.
        folder: where schemas are kept.
        registers: whether schemas to write by are registered; else they must be there already.
    """

    api: Api
    urls: tuple[str, ...]
    numbers: Literal["global", "content"] = "global"
    login: RegistryLogin = RegistryLogin()
    tls: TlsFiles = TlsFiles()
    timeout_s: float = _DURATIONS[TIMEOUT]
    grace_s: float = _DURATIONS[GRACE]
    folder: Path = Path()
    registers: bool = True


def settings_of(options: ConverterOptions) -> RegistrySettings:
    """Return the registry that a connector's converters, or our settings before them, name.

    Raises:
        ConfigError: they name none, or something in them cannot be used; `problems` says all.
    """
    for problem in problems(options):
        if not problem.warning:
            raise ConfigError(f"{problem.path}: {problem.message}", hint=problem.hint)
    told = _Told(options)
    api: Api = "compatible" if told.name_of_url == COMPATIBLE else "apicurio"
    urls, in_address = _addresses(told.url)
    usual = "contentId" if "/apis/registry/v3" in urls[0] else "globalId"
    numbers = told.get(USE_ID) or usual
    return RegistrySettings(
        api,
        urls,
        "content" if numbers.lower() == "contentid" else "global",
        login=_login(told) or in_address,
        tls=TlsFiles(*(told.get(name) or "" for name in _TLS)),
        timeout_s=_seconds(told, TIMEOUT),
        grace_s=_seconds(told, GRACE),
        folder=Path(told.get(FOLDER) or cache_dir() / "schemas"),
        registers=(told.get(*REGISTERS) or "true").lower() != "false",
    )


def problems(options: ConverterOptions) -> Iterator[Mistake]:
    """Yield why no registry can be used by these options.

    Paths are `source.converter.…` for lakemark's own settings, else the connector's.
    """
    told = _Told(options)
    yield from _of_names(told)
    if not told.url:
        yield _no_address(told)
    else:
        yield from _of_address(told)
    for name in _DURATIONS:
        value = told.own.get(name, "0")
        try:
            parse_duration(value)
        except PydanticCustomError as error:
            yield Mistake(f"{OWN}.{name}", error.message())
    yield from _of_files(told)
    yield from _of_login(told)
    yield from _of_two(options, told)


def address_of(options: ConverterOptions) -> str:
    """Return the address of the registry that these options name; empty if they name none."""
    told = _Told(options)
    return _addresses(told.url)[0][0] if told.url else ""


def names_registry(told: Mapping[str, str]) -> bool:
    """Say whether settings of ours name a registry by themselves."""
    return COMPATIBLE in told or APICURIO in told


def names_apicurio(options: ConverterOptions) -> bool:
    """Say whether the registry is spoken to by Apicurio's own API."""
    return _Told(options).name_of_url == APICURIO


class _Told:
    """All that is said of a registry, in our settings and in those of one of the converters.

    Attributes:
        own: of `source.converter`.
        side: the converter that names a registry; values' before keys'.
        theirs: settings of that converter.
        name_of_url: the setting that has the address; empty if none has.
    """

    def __init__(self, options: ConverterOptions) -> None:
        self.own = dict(options.own)
        sides: tuple[tuple[Side, Mapping[str, str]], ...] = (
            ("value", dict(options.value or ())),
            ("key", dict(options.key or ())),
        )
        naming = (one for one in sides if COMPATIBLE in one[1] or APICURIO in one[1])
        self.side, self.theirs = next(naming, sides[0])
        places = (
            (told, name) for told in (self.own, self.theirs) for name in (COMPATIBLE, APICURIO)
        )
        self.name_of_url = next((name for told, name in places if _known(told.get(name))), "")

    @property
    def url(self) -> str:
        return self.get(self.name_of_url) or ""

    def get(self, *names: str) -> str | None:
        """Return the first that is set, in ours before theirs, by any of its names."""
        for told in (self.own, self.theirs):
            for name in names:
                if (value := _known(told.get(name))) is not None:
                    return value
        return None

    def path(self, name: str) -> str:
        """Return the path of a setting, where it stands."""
        return f"{OWN}.{name}" if name in self.own else f"{self.side}.converter.{name}"


def _known(value: str | None) -> str | None:
    """Return a value; None for none, and for one that only Connect knows."""
    return None if value is None or "${" in value else value.strip()


def _addresses(text: str) -> tuple[tuple[str, ...], RegistryLogin]:
    """Return addresses without users, and the user that the first has."""
    urls, login = [], RegistryLogin()
    for number, url in enumerate(part.strip() for part in text.split(",")):
        parts = urlsplit(url)
        if number == 0 and parts.username:
            login = RegistryLogin(unquote(parts.username), unquote(parts.password or ""))
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        urls.append(bare.geturl().rstrip("/"))
    return tuple(urls), login


def _login(told: _Told) -> RegistryLogin | None:
    """Return the login; one that begins in our settings has nothing of the connector's."""
    if any(name in told.own for name in _LOGIN):
        told = _Told(ConverterOptions(own=tuple(told.own.items())))
    if token := told.get(*_TOKEN):
        return RegistryLogin(token=token, headers=_headers(told))
    if endpoint := told.get(*_ENDPOINT):
        client, secret, scope = (told.get(*names) or "" for names in (_CLIENT, _SECRET, _SCOPE))
        return RegistryLogin(
            endpoint=endpoint,
            client_id=client,
            client_secret=secret,
            scope=scope,
            headers=_headers(told),
        )
    if basic := told.get(*_BASIC):
        user, _, password = basic.partition(":")
        return RegistryLogin(user, password)
    apicurio = told.get(*_USER)
    return RegistryLogin(apicurio, told.get(*_PASSWORD) or "") if apicurio else None


def _headers(told: _Told) -> tuple[tuple[str, str], ...]:
    found = (
        ("target-sr-cluster", told.get(*_CLUSTER)),
        ("Confluent-Identity-Pool-Id", told.get(*_POOL)),
    )
    return tuple((name, value) for name, value in found if value)


def _seconds(told: _Told, name: str) -> float:
    if name not in told.own:
        return _DURATIONS[name]
    duration: Any = parse_duration(told.own[name])
    return float(duration.total_seconds())


# -- what is wrong --------------------------------------------------------------------------------


def _of_names(told: _Told) -> Iterator[Mistake]:
    for name in told.own:
        if name not in _KNOWN and _OURS.match(name):
            hint = nearest(name, _KNOWN, f"what there is: {', '.join(sorted(_KNOWN))}")
            yield Mistake(f"{OWN}.{name}", "is no setting of a schema registry", hint)


def _no_address(told: _Told) -> Mistake:
    setting = APICURIO if APICURIO in told.theirs else COMPATIBLE
    hint = f"set {OWN}: {{{setting}: http://HOST:PORT}}, as it is reached from here"
    if setting in told.theirs:
        why = "is a placeholder, which only Connect can resolve"
        return Mistake(f"{told.side}.converter.{setting}", why, hint)
    why = f"no schema registry is named: neither {COMPATIBLE} nor {APICURIO} is set"
    return Mistake(OWN, why, hint)


def _of_address(told: _Told) -> Iterator[Mistake]:
    path = told.path(told.name_of_url)
    urls, _ = _addresses(told.url)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            yield Mistake(path, "expected an address such as http://localhost:8081")
        elif told.name_of_url == APICURIO and "/apis/registry/v" not in parts.path:
            hint = "end it with /apis/registry/v2, or v3"
            yield Mistake(path, "names no API of Apicurio Registry", hint)
    number = told.get(USE_ID)
    if number is not None and number.lower() not in {"globalid", "contentid"}:
        yield Mistake(told.path(USE_ID), "expected globalId or contentId")


def _of_files(told: _Told) -> Iterator[Mistake]:
    for name in _FILES:
        file = told.own.get(name)
        if file is None:
            continue
        path = Path(file)
        if not path.is_absolute():
            yield Mistake(f"{OWN}.{name}", "expected an absolute path to a PEM file")
        elif not path.is_file():
            yield Mistake(f"{OWN}.{name}", f"{file} does not exist")
    if "ssl.key.location" in told.own and "ssl.certificate.location" not in told.own:
        why = "is of no use without ssl.certificate.location"
        yield Mistake(f"{OWN}.ssl.key.location", why)
    if told.url.startswith("https") and "ssl.ca.location" not in told.own:
        store = "schema.registry.ssl.truststore.location"
        if store in told.theirs:
            why = "names a store of Java, which is not read here"
            hint = f"set {OWN}: {{ssl.ca.location: FILE.pem}} unless the machine trusts it anyway"
            yield Mistake(f"{told.side}.converter.{store}", why, hint, warning=True)


def _of_login(told: _Told) -> Iterator[Mistake]:
    login = _login(told)
    if login is None:
        hidden = [name for name in _LOGIN if "${" in told.theirs.get(name, "")]
        source = told.theirs.get("basic.auth.credentials.source", "").upper()
        if hidden or source == "SASL_INHERIT":
            name = hidden[0] if hidden else "basic.auth.credentials.source"
            what = "is a placeholder, which only Connect can resolve"
            why = what if hidden else "takes the login from Kafka's settings in Connect"
            mine = name if hidden else _BASIC[0]
            hint = f"set {OWN}: {{{mine}: '${{file:secrets/registry}}'}}"
            yield Mistake(f"{told.side}.converter.{name}", why, hint)
        return
    names = _BASIC if told.get(*_BASIC) else _USER
    if login.endpoint and not (login.client_id and login.client_secret):
        path = told.path(next(name for name in _ENDPOINT if told.get(name)))
        hint = f"set {_CLIENT[0]} and {_SECRET[0]} beside it, in {OWN}"
        yield Mistake(path, "needs a client and its secret", hint)
    elif login.user and not login.password:
        path = told.path(next(name for name in names if told.get(name)))
        hint = f"set {OWN}: {{{_BASIC[0]}: '${{file:secrets/registry}}'}}, as USER:PASSWORD"
        yield Mistake(path, "has a user without a password", hint)


def _of_two(options: ConverterOptions, told: _Told) -> Iterator[Mistake]:
    """Report converters of keys and of values with registries of their own."""
    if told.name_of_url in told.own:
        return
    named = {
        _addresses(value)[0]
        for side in (options.key, options.value)
        for name, value in side or ()
        if name == told.name_of_url
    }
    if len(named) > 1:
        path = f"key.converter.{told.name_of_url}"
        hint = f"set {OWN}: {{{told.name_of_url}: …}} if both are one registry"
        yield Mistake(path, "is another registry than that of values", hint)
