"""What a table of the lake should hold: rows of the source in canonical form, whichever database.

Nothing here uses lakemark's own decoding. The database itself does the arithmetic of dates and
times (`Reading.select`), the rest is a few lines of Python (`Reading.parse`). `stack.postgres_rows`
and `stack.mysql_rows` know the types of their products.
"""

import base64
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lakemark.model.handling_modes import HandlingModes

FIRST_MICRO: Final = -62_135_596_800_000_000
"""0001-01-01 in microseconds since 1970: what lies before is clamped to it."""
LAST_MICRO: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999: what lies after is clamped to it."""
MAX_PRECISION: Final = 38
"""Digits that a decimal of the lake can have; one with more is a text."""

Parser = Callable[[str], Any]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a value is read from the source and from the lake.

    Attributes:
        select: SQL around the column `{}` whose text `parse` understands.
        parse: from that text to the canonical value.
        lake: from the lake's value to the same form, where they are not the same already.
    """

    select: str = "{}"
    parse: Parser = str
    lake: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """A table as the source has it.

    Attributes:
        readings: how each column is read, by its name and in the table's order.
        key: the columns of the primary key; none if there is no key.
        rows: the canonical values of each row, in the order of the columns.
    """

    readings: Mapping[str, Reading]
    key: tuple[str, ...]
    rows: list[Row] = field(repr=False)


class Source(ABC):
    """A database at one moment: all tables that are read are from the same snapshot."""

    @abstractmethod
    def read(self, table: str, left_out: Collection[str]) -> ExpectedTable:
        """Return a table.

        Args:
            table: its identifier, as lakemark has it.
            left_out: columns that the connector cannot carry.
        """


def real(text: str) -> float | str:
    """Return a number of 32 bits."""
    return double(struct.unpack("f", struct.pack("f", float(text)))[0])


def double(text: str | float) -> float | str:
    """Return a number of 64 bits, or a text for NaN, which equals not even itself."""
    value = float(text)
    return "NaN" if value != value else value  # noqa: PLR0124


def plain(text: str) -> str:
    """Return a decimal without zeros at its end."""
    shortest = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if shortest in ("-0", "") else shortest


def binary(modes: HandlingModes) -> Callable[[bytes], Any]:
    """Return how the connector sends bytes, as `binary.handling.mode` says."""
    forms: dict[str, Callable[[bytes], Any]] = {
        "bytes": bytes,
        "base64": lambda b: base64.b64encode(b).decode(),
        "base64-url-safe": lambda b: base64.urlsafe_b64encode(b).decode(),
        "hex": bytes.hex,
    }
    return forms[modes.binary]
