"""Rows that do not say their place in the log, read in the order in which they arrive.

As `flattened`, but a record's place is its offset, its table is its topic's, and a record without a
value is a delete of its key. See `model.arrival` for what that order is worth.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from lakemark.converters.json.envelope import NULL
from lakemark.converters.json.flattened import (
    OP,
    FlatRecord,
    FlattenedConverter,
    TableInTopic,
    Told,
)
from lakemark.model.decoding import ConverterOptions, DecodedRange, StretchPlan
from lakemark.settings.names import topic_safe
from lakemark.settings.table_id import TableId, unqualified

_TIMES: Final = tuple(("source", name) for name in ("ts_ms", "ts_us"))
_CREATED: Final = frozenset({b'"c"', b'"r"'})
_DELETE: Final = b'"d"'
_encode: Final = msgspec.json.encode


class ArrivingConverter(FlattenedConverter):
    """See `Converter`; its source blocks are those of `model.arrival`."""

    def of(self, options: ConverterOptions) -> "ArrivingConverter":
        """See `Converter`."""
        return ArrivingConverter(self._beside.of(options), self._flattening)

    def plain_range(
        self,
        topic: str,  # noqa: ARG002
        partition: int,  # noqa: ARG002
        parts: Sequence[pa.RecordBatch],  # noqa: ARG002
        plan: StretchPlan,  # noqa: ARG002
    ) -> DecodedRange | None:
        """See `Converter`: there is no faster way."""
        return None

    def _table_in(self, topic: str, plan: StretchPlan) -> TableInTopic | None:
        """See `FlattenedConverter`: as the connector names topics; None for one of no table."""
        identity = plan.identity
        start = f"{identity.logical_name}."
        if not identity.logical_name or not topic.startswith(start):
            return None
        rest = topic.removeprefix(start)
        for table in (*plan.schemas, *plan.known_keys):
            own = unqualified(identity.qualifier, table)
            parts = TableId.parse(own).parts if own else ()
            if parts and topic_safe(".".join(parts)) == rest:
                return TableInTopic(".".join(parts[:-1]), parts[-1])
        outer, dot, name = rest.partition(".")
        return TableInTopic(outer, name) if dot and name else None

    def _told(self, told: Told, record: FlatRecord, *, gone: bool) -> Told:
        """See `FlattenedConverter`: nothing in a topic of no table, which is read as it is.

        The names that a record says are not taken: those without a value say none.
        """
        if record.table is None:
            return {}
        outer, name = map(_encode, record.table)
        op = told.get(OP, NULL)
        kind = _DELETE if gone or op == _DELETE else b'"c"' if op in _CREATED else b'"u"'
        return {
            **{one: told[one] for one in _TIMES if one in told},
            OP: kind,
            ("source", "schema"): outer,
            ("source", "table"): name,
            ("source", "offset"): b"%d" % record.offset,
        }

    def _image(self, row: bytes, op: bytes) -> bytes:
        """See `FlattenedConverter`: the key alone names a deleted row.

        What a delete shows beside it is not the whole row, which the fold of events would take for
        one of two that had the key.
        """
        return NULL if op == _DELETE else row
