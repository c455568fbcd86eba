"""Typed rows of a table as the JSON objects that its connector would have written.

The inverse of `json.rows`: `decode_rows` of a rendered image gives the same values, and
an image that was decoded is rendered as the same bytes, but for what the canonical types forget:

    values                               forgotten                        written
    -----------------------------------  -------------------------------  -----------------------
    the first and last date (0001-01-01  whether they were infinities or  that date or timestamp;
    and 9999-12-31) and timestamp of     beyond those years               in nanoseconds mode the
    Delta                                                                 ends of int64
    timestamps in nanoseconds mode       nothing: the connector itself    null, as it writes
    outside the years 1677 to 2262       loses them
    24:00:00 in isostring and in         nothing: the connector itself    00:00:00Z and null, as it
    structured mode                      loses it                         writes
    zoned timestamps; in structured      how many digits the fraction of  those of the catalog, see
    mode all with a time of day          the column's type has            `Column.modifier`, else 6
    nulls of a column with a default     that the JSON converter wrote    null, or the text given,
                                         the default for null             see `default_texts`
    doubles and floats                   that Java 17 and 18 write some   the shortest digits, as
                                         with more digits than needed     Java 19 and newer
    not of PostgreSQL: zoned timestamps  their zone                       UTC
    not of PostgreSQL: decimals of       zeros at their end               none
    variable scale
    not of PostgreSQL: uuids             upper case                       lower case

`Rendering.losses` names the columns of a table that the first, the second and the fourth concern,
and `Rendered.inexact` the rows in which a value may be one of the first two. Of the others nothing
can be named: neither the values nor the schema tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from lakemark.converters.json import json_texts as j
from lakemark.converters.json.json_values import writer
from lakemark.model.columns import USUAL_DIGITS
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Loss:
    """A reason why a column's bytes may differ from the connector's.

    Attributes:
        column: its name.
        reason: what is not known, as a clause.
        every: every value may differ; otherwise only those of the rows in `Rendered.inexact`.
    """

    column: str
    reason: str
    every: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """JSON objects of rows, in the order given.

    Attributes:
        objects: binary array, one JSON object a row, none null.
        inexact: per column with such values the rows whose bytes may differ from the connector's.
    """

    objects: pa.Array
    inexact: Mapping[str, np.ndarray]


class Rendering:
    """The writer of one table's rows; made once, used for many rows. Immutable."""

    def __init__(
        self,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        defaults: Mapping[str, bytes] | None = None,
    ) -> None:
        """Prepares the writers of all columns.

        Args:
            schema: the table's schema; its order is that of the members.
            modes: the connector's settings.
            defaults: per column the JSON text written for null, see `default_texts`: for a JSON
                converter with replace.null.with.default, which is its default.
        """
        self.schema = schema
        self._nulls = {name: text.decode() for name, text in (defaults or {}).items()}
        self._writers: dict[str, j.Writer] = {
            column.name: writer(
                column, modes, USUAL_DIGITS if column.modifier is None else column.modifier
            )
            for column in schema.columns
        }

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The columns whose values cannot always be written as the connector would."""
        found = []
        for name, one in self._writers.items():
            if one.by_digits and self.schema.column(name).modifier is None:
                reason = f"the digits of its fraction are not known, {USUAL_DIGITS} are written"
                found.append(Loss(name, reason, every=True))
            if one.inexact is not None:
                found.append(Loss(name, one.loss, every=False))
        return tuple(found)

    def fragments(self, name: str, values: pa.Array) -> pa.Array:
        """The JSON texts of one column's values, binary, ``null`` for null.

        Args:
            name: the column.
            values: of the column's canonical type.

        Raises:
            KeyError: the table has no such column.
            ValueError: a text is not one of the column's canonical form.
        """
        return self._texts(name, values).cast(pa.binary())

    def images(self, rows: pa.StructArray) -> Rendered:
        """Row images (``after`` objects), all columns in the schema's order.

        Args:
            rows: a child for every column, by name and of its canonical type; other children do
                not matter. Together below 2 GiB of text.

        Raises:
            KeyError, ValueError: as `fragments`.
        """
        names = [column.name for column in self.schema.columns]
        return self._objects(rows, names)

    def keys(self, rows: pa.StructArray) -> Rendered | None:
        """Record keys in key order; None for a table without a key. Arguments as `images`."""
        if not self.schema.key:
            return None
        return self._objects(rows, self.schema.key)

    def _objects(self, rows: pa.StructArray, names: Sequence[str]) -> Rendered:
        pairs = [(name, rows.field(name)) for name in names]
        fragments = [self._texts(name, values) for name, values in pairs]
        inexact = {}
        for name, values in pairs:
            find = self._writers[name].inexact
            if find is not None and len(found := find(values)):
                inexact[name] = found
        return Rendered(j.objects(names, fragments, len(rows)).cast(pa.binary()), inexact)

    def _texts(self, name: str, values: pa.Array) -> pa.Array:
        return j.or_null(self._writers[name].texts(values), self._nulls.get(name, j.NULL))


def default_texts(wrapper_schema: bytes) -> dict[str, bytes]:
    """Per column with a default, its JSON text in the schema of a wrapped record.

    Args:
        wrapper_schema: the raw ``schema`` member of a value of the table.
    """
    envelope = _SCHEMA.decode(wrapper_schema)
    row = next((f for f in envelope.fields if f.field == "after"), envelope)
    texts = {f.field: bytes(f.default) for f in row.fields}
    return {name: text for name, text in texts.items() if text not in (b"", b"null")}


class _Schema(msgspec.Struct, gc=False):
    """The parts of a Connect schema, as the JSON converter writes it, that are needed here."""

    field: str = ""
    fields: list["_Schema"] = []
    default: msgspec.Raw = msgspec.Raw(b"")


_SCHEMA: Final[Any] = msgspec.json.Decoder(_Schema)
