"""The forms a setting can have: durations, sizes, places, addresses, regular expressions."""

import os
import re
import unicodedata
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError

from lakemark.settings.file_secret import Referred, secret
from lakemark.settings.layers import Written
from lakemark.settings.masking import SECRET_KEY
from lakemark.settings.patterns import is_quick_in_java, problem_with_regex
from lakemark.settings.table_id import is_table

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES: Final = {"b": 1, "kb": 1000, "kib": 1024, "mb": 1000**2, "mib": 1024**2}
_DURATION: Final = r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$"
_SIZE: Final = r"^\s*(\d+)\s*([kKmM]i?[bB]|[bB])?\s*$"
LAKE_SCHEMES: Final = ("abfs", "abfss", "az", "file", "gs", "hdfs", "s3", "s3a")

# No secret: hiding it would blot out the same word wherever it is said.
_SWITCH: Final = re.compile(r"true|false|\d{1,6}", re.IGNORECASE)
# What decides over exactly-once, and what Spark's Kafka source refuses.
_SET_BY_US: Final = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "group.id",
        "interceptor.classes",
        "isolation.level",
        "key.deserializer",
        "key.serializer",
        "value.deserializer",
        "value.serializer",
    }
)


def parse_duration(value: object) -> object:
    """``500ms``, ``1s``, ``2m``, ``1h``, ``1d`` or 0 as a timedelta."""
    if isinstance(value, timedelta):
        return value
    if value in {0, "0"}:
        return timedelta()
    found = re.match(_DURATION, value) if isinstance(value, str) else None
    if found is None:
        raise PydanticCustomError("duration", "expected a duration such as 500ms, 1s, 2m or 1h")
    return timedelta(milliseconds=float(found[1]) * _UNITS_MS[found[2]])


def show_duration(value: timedelta) -> str:
    """The shortest form that `parse_duration` reads back."""
    milliseconds = round(value / timedelta(milliseconds=1))
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def parse_size(value: object) -> object:
    """``4 MiB``, ``900 kB`` or a number of bytes as an int."""
    found = re.match(_SIZE, value) if isinstance(value, str) else None
    if found is None:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise PydanticCustomError("size", "expected a size such as 4 MiB, 900 kB or 1048576")
    return int(found[1]) * _UNITS_BYTES[(found[2] or "b").lower()]


def _local(value: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base") or Path.cwd()
    return Path(os.path.normpath(base / value.expanduser()))


def _existing(value: Path, info: ValidationInfo) -> Path:
    file = _local(value, info)
    if not file.is_file() or not os.access(file, os.R_OK):
        why = "cannot be read" if file.exists() else "does not exist"
        raise PydanticCustomError("file", "{file} {why}", {"file": str(file), "why": why})
    return file


def _location(value: str, info: ValidationInfo) -> str:
    """A local path made absolute, or an object store address as it is."""
    scheme, found, _ = value.partition("://")
    if not found:
        return str(_local(Path(value), info))
    if scheme not in LAKE_SCHEMES:
        raise PydanticCustomError(
            "location",
            "expected a local path or an address that starts with one of {schemes}",
            {"schemes": ", ".join(f"{known}://" for known in LAKE_SCHEMES)},
        )
    return value.rstrip("/")


def text(value: object) -> object:
    """Booleans as other programs write them, numbers as they were written; else as it is."""
    if isinstance(value, Written):
        return value.text
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def servers(value: object) -> object:
    """A list of brokers as the comma-separated text that Kafka's clients want."""
    return ",".join(str(part).strip() for part in value) if isinstance(value, list) else value


def _regex(value: str) -> str:
    problem = problem_with_regex(value)
    if problem:
        raise PydanticCustomError("regex", "{problem}", {"problem": problem})
    return value


def _java_regex(value: str) -> str:
    """An expression that Kafka's subscription matches, which is Java's."""
    if not is_quick_in_java(_regex(value)):
        raise PydanticCustomError(
            "regex",
            "Java may match this for ever: repeat single characters only, and at most three times",
        )
    return value


def _table(value: str) -> str:
    if not is_table(value):
        raise PydanticCustomError("table", "expected a table such as public.orders")
    return value


def _free_map(value: object) -> object:
    """Keys of other programs: a value becomes a secret if its key sounds like one.

    So does one that comes from a file or a variable, as secrets do.
    """
    if not isinstance(value, dict):
        return value
    found: dict[str, str | SecretStr] = {}
    for name, inner in value.items():
        shown = text(inner)
        if not isinstance(shown, str):
            raise PydanticCustomError("map", "{name}: expected one value", {"name": str(name)})
        referred = isinstance(shown, Referred) and not _SWITCH.fullmatch(shown)
        found[str(name)] = _hidden(shown) if referred or SECRET_KEY.search(str(name)) else shown
    return found


def _hidden(value: str) -> SecretStr:
    found = secret(value)
    return found if isinstance(found, SecretStr) else SecretStr(value)


def _client(value: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    taken = sorted(_SET_BY_US & set(value))
    if taken:
        raise PydanticCustomError(
            "taken", "{names}: lakemark sets this itself", {"names": ", ".join(taken)}
        )
    return value


def _spark(value: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    odd = sorted(name for name in value if not name.startswith("spark."))
    if odd:
        raise PydanticCustomError(
            "spark", "{names}: settings of Spark start with spark.", {"names": ", ".join(odd)}
        )
    return value


def reveal(settings: Mapping[str, str | SecretStr]) -> dict[str, str]:
    """A free map with its secrets in clear."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in settings.items()
    }


def _http(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PydanticCustomError("url", "expected an address such as http://localhost:8083")
    return value.rstrip("/")


def _database(value: str) -> str:
    """Take a URL of any scheme: which there are, the connectors say (`connectors.registry`)."""
    parts = urlsplit(value)
    if not parts.scheme or not parts.hostname:
        raise PydanticCustomError(
            "url", "expected an address such as SCHEME://USER@HOST:PORT/DATABASE"
        )
    parameters = parse_qsl(value.partition("?")[2], keep_blank_values=True)
    secrets = [name for name, _ in parameters if SECRET_KEY.search(name)]
    if secrets:
        raise PydanticCustomError(
            "url",
            "expected no {names} among its parameters, where it would be shown: a password stands"
            " in database.password, such as ${file:secrets/database} or ${env:NAME}",
            {"names": ", ".join(secrets)},
        )
    return value


def host_port(address: str) -> tuple[str, int]:
    """The two parts of ``HOST:PORT``; an IPv6 host stands in brackets there.

    Raises:
        ValueError: it is no such text.
    """
    parts = urlsplit(f"//{address}")
    if not parts.hostname or parts.port is None or parts.path or parts.username is not None:
        raise ValueError(address)
    return parts.hostname, parts.port


def is_header_text(text: str) -> bool:
    """Say whether a header of HTTP can hold the text as it is."""
    return text == text.strip() and not any(unicodedata.category(c) == "Cc" for c in text)


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def nothing(value: object) -> object:
    """The word ``none`` as None: what an environment variable cannot say otherwise."""
    shown = text(value)
    return None if isinstance(shown, str) and shown.strip().lower() in {"none", "null"} else shown


def _address(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        host_port(value)
    except ValueError:
        raise PydanticCustomError(
            "address", "expected HOST:PORT such as 127.0.0.1:8780 or [::1]:8780, or none"
        ) from None
    return value


class SettingsSchema(GenerateJsonSchema):
    """JSON Schema of settings, with defaults as a user would write them."""

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON."""
        return show_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(show_duration, return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "pattern": _DURATION, "examples": ["1s"]}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "pattern": _SIZE, "examples": ["4 MiB"]}),
]
ExistingFile = Annotated[Path, AfterValidator(_existing)]
Location = Annotated[str, Field(min_length=1), AfterValidator(_location)]
Text = Annotated[str, BeforeValidator(text)]
Secret = Annotated[SecretStr, BeforeValidator(secret), BeforeValidator(text)]
TableRegex = Annotated[str, Field(min_length=1), AfterValidator(_regex)]
TopicRegex = Annotated[str, Field(min_length=1), AfterValidator(_java_regex)]
TableId = Annotated[str, AfterValidator(_table)]
FreeMap = Annotated[
    dict[str, str | SecretStr],
    BeforeValidator(_free_map),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }
    ),
]
ClientSettings = Annotated[FreeMap, AfterValidator(_client)]
SparkSettings = Annotated[FreeMap, AfterValidator(_spark)]
Address = Annotated[str | None, BeforeValidator(nothing), AfterValidator(_address)]
HttpUrl = Annotated[str, AfterValidator(_http)]
DatabaseUrl = Annotated[str, AfterValidator(_database)]
