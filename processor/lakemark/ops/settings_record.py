"""The settings that a query runs with, stored as a record of the progress topic; pure.

`lakemark plan` compares them with a configuration that was changed since. Secrets are masked, as
`lakemark config show` does it, so a changed secret does not show. The settings of one of several
connectors go by its name, ``source.connectors[shop].tables``: its number is another one as soon as
the list is.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from lakemark.ops.effects import CONNECTORS, Takes, of_connector, rule_of
from lakemark.settings.config import Config, leaves
from lakemark.settings.layers import SettingPath, dotted
from lakemark.settings.masking import MASK

KEY: Final = b"_config"
# Where a setting that is not listed is one that was not set.
_MAY_LACK: Final = (
    *("database", "output", "spark", "source.connect", "kafka.java", "kafka.librdkafka"),
    *("lake.tables", "lake.storage_options", "source.converter"),
    "output.converter",
)
_ENTRY_MAY_LACK: Final = ("database", "connect", "converter")


class SettingsRecord(msgspec.Struct, frozen=True):
    """Value of the record: text by dotted path, and when the query started."""

    settings: dict[str, str]
    ts_ms: int = 0


class Change(msgspec.Struct, frozen=True):
    """A setting that has changed; an empty text stands for one that is not set."""

    setting: str
    before: str
    now: str
    takes: Takes
    note: str = ""


def masked(config: Config) -> dict[str, str]:
    """Return every setting as text, by its dotted path, without secrets."""
    hide = config.masks().foreign
    connectors = [*map(hide, config.connector_names)]
    listed = {CONNECTORS: ", ".join(connectors)} if connectors else {}
    return listed | {
        _name(path, connectors): MASK if secret and value else hide(value)
        for path, value, secret in leaves(config)
    }


def _name(path: SettingPath, connectors: Sequence[str]) -> str:
    match path:
        case ("source", "connectors", int(number), *rest):
            return f"{CONNECTORS}[{connectors[number]}].{dotted((*rest,))}"
    return dotted(path)


def encode(config: Config, *, ts_ms: int) -> bytes:
    """Return the record's value."""
    return msgspec.json.encode(SettingsRecord(masked(config), ts_ms))


def decode(value: bytes | None) -> SettingsRecord | None:
    """Return the record as it was written; None if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(value or b"", type=SettingsRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def changes(before: Mapping[str, str], config: Config) -> list[Change]:
    """Return the differences between the settings that ran and these, in the order of these.

    A setting that `before` lacks, because another version wrote it, is not compared. Those of a
    connector that came into the list, or left it, are not: that it did is what differs.

    Args:
        before: of `SettingsRecord.settings`, or some of them.
        config: as it is now.
    """
    now = masked(config)
    entries = {entry for name in now if (entry := of_connector(name)[0])}
    lacking = (*_MAY_LACK, *(f"{entry}{part}" for entry in entries for part in _ENTRY_MAY_LACK))
    sections = {section for section in lacking if _says(before, section)}
    changed = []
    for name in dict.fromkeys((*now, *before)):
        is_compared = name in before or any(name.startswith(f"{s}.") for s in sections)
        was, wanted = before.get(name, ""), now.get(name, "")
        has_left = of_connector(name)[0] not in ("", *entries)
        if not is_compared or was == wanted or has_left:
            continue
        with suppress(LookupError):  # a setting that is no more
            rule = rule_of(name, to=wanted)
            changed.append(Change(name, was, wanted, rule.takes, rule.note))
    return changed


def _says(before: Mapping[str, str], section: str) -> bool:
    return any(name == section or name.startswith(f"{section}.") for name in before)
