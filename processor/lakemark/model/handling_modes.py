"""The connector's settings that decide how it writes values."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import md5
from typing import Final
from uuid import UUID

from lakemark.errors import ConfigError
from lakemark.model.value_rules import ValueRules, connector_of, rules_of

PLACEHOLDER: Final = b"__debezium_unavailable_value"

# Property of the connector -> values it may have, the default first.
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "decimal.handling.mode": ("precise", "double", "string"),
    "time.precision.mode": (
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
        "structured",
    ),
    "binary.handling.mode": ("bytes", "base64", "base64-url-safe", "hex"),
    "hstore.handling.mode": ("json", "map"),
    "interval.handling.mode": ("numeric", "string"),
    "value.converter.decimal.format": ("BASE64", "NUMERIC"),
}

_SETTINGS: Final = (
    *_CHOICES,
    "money.fraction.digits",
    "include.unknown.datatypes",
    "unavailable.value.placeholder",
)
_CLASS: Final = "connector.class"


@dataclass(frozen=True, slots=True)
class HandlingModes:
    """The way in which the connector writes values, with Debezium's own words and defaults.

    Attributes:
        decimal: decimal.handling.mode.
        time_precision: time.precision.mode.
        binary: binary.handling.mode.
        hstore: hstore.handling.mode.
        interval: interval.handling.mode.
        money_fraction_digits: money.fraction.digits.
        decimal_format: the JSON converter's decimal.format.
        include_unknown: include.unknown.datatypes.
        placeholder: bytes of unavailable.value.placeholder.
        lacks_values: whether the connector ever writes the placeholder; else it is a value as any.
        own: settings, and their values, that only this kind of connector has, see `value_rules`.
    """

    decimal: str = "precise"
    time_precision: str = "adaptive"
    binary: str = "bytes"
    hstore: str = "json"
    interval: str = "numeric"
    money_fraction_digits: int = 2
    decimal_format: str = "BASE64"
    include_unknown: bool = False
    placeholder: bytes = PLACEHOLDER
    lacks_values: bool = True
    own: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_connector(cls, config: Mapping[str, str]) -> "HandlingModes":
        """The modes of a connector's own configuration; what is absent has Debezium's default.

        Raises:
            ConfigError: a property has a value that Debezium does not know.
        """
        rules, choices = _rules(config), _choices(config)
        chosen = {name: _choice(config, name, allowed) for name, allowed in choices.items()}
        own = {name: value for name, value in chosen.items() if name not in _CHOICES}
        digits = str(config.get("money.fraction.digits", "2")).strip()
        if not digits.isdecimal():
            raise _unknown("money.fraction.digits", digits, "a whole number")
        return cls(
            decimal=chosen["decimal.handling.mode"],
            time_precision=chosen["time.precision.mode"],
            binary=chosen["binary.handling.mode"],
            hstore=chosen["hstore.handling.mode"],
            interval=chosen["interval.handling.mode"],
            money_fraction_digits=int(digits),
            decimal_format=chosen["value.converter.decimal.format"],
            include_unknown=str(config.get("include.unknown.datatypes", "")).lower() == "true",
            placeholder=_placeholder(config.get("unavailable.value.placeholder")),
            lacks_values=rules is None or rules.lacks_values,
            own=tuple(sorted((own | _more_settings(config)).items())),
        )

    def setting(self, name: str) -> str | None:
        """Return the value of a setting that only this kind of connector has; None where not set.

        Args:
            name: as Debezium calls it.
        """
        return dict(self.own).get(name)

    @property
    def placeholder_text(self) -> str:
        """The placeholder as Java's `new String(bytes)` gives it."""
        return self.placeholder.decode("utf-8", "replace")

    @property
    def placeholder_uuid(self) -> str:
        """java.util.UUID.nameUUIDFromBytes of the placeholder (version 3 without a namespace)."""
        digest = md5(self.placeholder, usedforsecurity=False).digest()
        return str(UUID(bytes=digest, version=3))

    @property
    def placeholder_strings(self) -> tuple[str, ...]:
        """Every text that may stand for an unavailable value in a string column."""
        texts = [self.placeholder_text]
        if self.binary == "hex":
            texts.append(self.placeholder.hex())
        elif self.binary == "base64":
            texts.append(base64.b64encode(self.placeholder).decode())
        elif self.binary == "base64-url-safe":
            texts.append(base64.urlsafe_b64encode(self.placeholder).decode())
        return tuple(dict.fromkeys(texts))


def settings_of(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that handling modes are made of, as far as a connector has them.

    The modes of these are those of the connector.
    """
    names = [_CLASS, *_SETTINGS, *_choices(config)]
    return {name: config[name] for name in names if name in config} | _more_settings(config)


def usual_choice(config: Mapping[str, str], name: str) -> str:
    """Return the default of a setting, as connectors of this class have it.

    Args:
        config: of the connector.
        name: a setting with fixed values.
    """
    return _choices(config)[name][0]


def _rules(config: Mapping[str, str]) -> ValueRules | None:
    return rules_of(connector_of(str(config.get(_CLASS, ""))))


def _choices(config: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    rules = _rules(config)
    return _CHOICES if rules is None else {**_CHOICES, **rules.choices}


def _more_settings(config: Mapping[str, str]) -> dict[str, str]:
    rules = _rules(config)
    return {} if rules is None else rules.more_settings(config)


def _choice(config: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    given = str(config.get(name, allowed[0])).strip()
    for choice in allowed:
        if choice.lower() == given.lower():
            return choice
    raise _unknown(name, given, "one of " + ", ".join(allowed))


def _unknown(name: str, given: str, expected: str) -> ConfigError:
    return ConfigError(
        f"the connector's {name} is {given!r}, expected {expected}",
        hint="correct the connector's configuration, or update lakemark",
    )


def _placeholder(text: str | None) -> bytes:
    if text is None:
        return PLACEHOLDER
    if text.startswith("hex:"):
        try:
            return binascii.unhexlify(text.removeprefix("hex:"))
        except (binascii.Error, ValueError) as error:
            raise _unknown("unavailable.value.placeholder", text, "hex digits") from error
    return text.encode()
