"""The values that the connectors of MySQL and MariaDB write otherwise than the databases have them.

See `lakemark.model.value_rules`. What nobody can mend, as the connector's snapshots write it, too:

- a date with a year below 100, to which ``enable.time.adjuster`` adds a century
- a zero date in a column that is NOT NULL, also a partial one: it is 1970-01-01
- times below zero or of a day and more where ``time.precision.mode`` is connect or isostring, years
  before 1678 and after 2261 where it is nanoseconds: null; of a column that is NOT NULL the
  connector stops there. MariaDB's connector (3.5.0) writes another year in nanoseconds instead
- dates and times, and bytes, inside of JSON: the connector writes them in its own way
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.connectors.mysql.json_text import canonical_texts
from lakemark.connectors.mysql.uuids import mended_texts
from lakemark.model.columns import JSON, UUID, Column
from lakemark.model.value_rules import Mend
from lakemark.settings.names import split_list

YEAR: Final = "io.debezium.time.Year"
ZONED: Final = "io.debezium.time.ZonedTimestamp"
UNSIGNED: Final = pa.decimal128(20, 0)
"""The type of a bigint unsigned."""

_YEAR_ZERO: Final = 1900  # in the log; the type has 1901 to 2155, and 0


def _from_wrapped(values: pa.Array) -> pa.Array:
    """Whole numbers of 64 bits with a sign, to those without one of the same bits."""
    words = np.zeros((len(values), 2), np.int64)
    words[:, 0] = values.fill_null(0).to_numpy(zero_copy_only=False)
    bitmap = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(UNSIGNED, len(values), [bitmap, pa.py_buffer(words)])


def _to_wrapped(values: pa.Array) -> pa.Array:
    whole = values if values.offset == 0 else pa.concat_arrays([values])
    words = np.frombuffer(whole.buffers()[1], np.int64, len(whole) * 2).reshape(-1, 2)
    missing = whole.is_null().to_numpy(zero_copy_only=False)
    return pa.array(np.ascontiguousarray(words[:, 0]), mask=missing)


def _from_year(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values, _YEAR_ZERO), pa.scalar(0, values.type), values)


def _to_year(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values, 0), pa.scalar(_YEAR_ZERO, values.type), values)


def _without_zero(values: pa.Array) -> pa.Array:
    """Timestamps with null for 1970-01-01 00:00:00, which the type does not have."""
    zero = pc.equal(values.cast(pa.int64()), 0)
    return pc.if_else(zero, pa.scalar(None, values.type), values)


@dataclass(frozen=True, slots=True)
class BinlogValueRules:
    """See `ValueRules`.

    Attributes:
        mends: by name.
        by_encoding: the mends of columns of one semantic name.
        choices: see there.
        lacks_values: see there.
    """

    mends: Mapping[str, Mend]
    by_encoding: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]
    lacks_values: bool = False  # a row's image is whole, or the connector stops at it

    def more_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """See `ValueRules`: the connector's own converters of values."""
        names = split_list(settings.get("converters", ""))
        starts = ("converters", *(f"{name}." for name in names))
        return {k: v for k, v in settings.items() if names and k.startswith(starts)}

    def mend_of(self, column: Column) -> str:
        """See `ValueRules`."""
        plain = column.wire == "int64" and not column.encoding
        if plain and column.source_type.startswith("bigint unsigned"):
            return "unsigned"
        name = self.by_encoding.get(column.encoding, "")
        # A column that is NOT NULL has 1970 for zero on both databases.
        return "" if name == "zero-timestamp" and not column.optional else name


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "time.precision.mode": (
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ),
    "bigint.unsigned.handling.mode": ("long", "precise"),
    "enable.time.adjuster": ("true", "false"),
}
_MENDS: Final[Mapping[str, Mend]] = {
    "unsigned": Mend(_from_wrapped, _to_wrapped, plain=pa.int64(), exact=UNSIGNED),
    "year": Mend(_from_year, _to_year),
    "json": Mend(canonical_texts, loss="JSON is written without spaces"),
    "uuid": Mend(mended_texts, loss="a UUID has its zero bytes at the end"),
    "zero-timestamp": Mend(_without_zero),
}

VALUES: Final[Mapping[str, BinlogValueRules]] = {
    "mysql": BinlogValueRules(_MENDS, {YEAR: "year", JSON: "json"}, _CHOICES),
    "mariadb": BinlogValueRules(
        _MENDS, {YEAR: "year", UUID: "uuid", ZONED: "zero-timestamp"}, _CHOICES
    ),
}
"""The rules by connector, see `lakemark.model.value_rules`."""
