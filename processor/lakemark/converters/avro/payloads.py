"""Keys and values as the JSON of their payloads, each by the schema that it names.

What names none is left as it is: JSON may stand beside Avro, in one topic or one record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lakemark.converters import compiler
from lakemark.converters.avro.framing import Framing
from lakemark.converters.avro.known_schemas import Form, KnownSchemas
from lakemark.converters.avro.plain_datums import DatumError, json_of
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.converters.beside import BadRecord
from lakemark.errors import TableError

INVALID: Final = "invalid-avro"
_Headers = Sequence[Mapping[str, Any]] | None


@dataclass(slots=True)
class Payloads:
    """The contents of keys or values, in their order.

    Attributes:
        texts: JSON; what names no schema as it came; None for what is null or cannot be read.
        forms: the schema of each; None for what names none, or cannot be read.
        bad: by index, those that cannot be read.
    """

    texts: list[bytes | None]
    forms: list[Form | None]
    bad: dict[int, BadRecord] = field(default_factory=dict)

    def wrapped(self, index: int) -> bytes | None:
        """Return one with the schema that it was written by, if there is one."""
        text, form = self.texts[index], self.forms[index]
        return text if text is None or form is None else form.wrapper + text + b"}"


def payloads(
    raws: Sequence[bytes | None],
    framing: Framing,
    forms: KnownSchemas,
    headers: Sequence[_Headers] | None = None,
) -> Payloads:
    """Return what keys or values say.

    Args:
        raws: as they came.
        framing: of their side.
        forms: the schemas.
        headers: of their records.

    Raises:
        DependencyError: the registry is away.
    """
    out = Payloads([*raws], [None] * len(raws))
    groups: dict[SchemaReference, list[tuple[int, int]]] = {}
    for index, raw in enumerate(raws):
        framed = framing.of(raw, headers[index] if headers else None) if raw else None
        if framed is not None:
            groups.setdefault(framed.reference, []).append((index, framed.begin))
    for reference, places in groups.items():
        _read(reference, places, raws, forms, out)
    return out


def _read(
    reference: SchemaReference,
    places: list[tuple[int, int]],
    raws: Sequence[bytes | None],
    forms: KnownSchemas,
    out: Payloads,
) -> None:
    """Read all of one schema."""
    try:
        form = forms.of(reference)
    except TableError as error:
        for index, _ in places:
            out.texts[index] = None
            out.bad[index] = BadRecord(error.code, error.message)
        return
    datums = [(raws[index] or b"", begin) for index, begin in places]
    for (index, _), text in zip(places, _texts(form, datums), strict=True):
        out.texts[index] = text
        if text is None:
            named = f"{reference.kind} {reference.number}"
            out.bad[index] = BadRecord(INVALID, f"the bytes do not fit their schema, {named}")
        else:
            out.forms[index] = form


def _texts(form: Form, datums: list[tuple[bytes, int]]) -> list[bytes | None]:
    if not compiler.usable():
        return [_one(form, raw, begin) for raw, begin in datums]
    from lakemark.converters.avro.transcript import transcript  # noqa: PLC0415 - workers have it already, others need it not

    ends = np.cumsum([len(raw) for raw, _ in datums], dtype=np.int64)
    begins = ends - np.array([len(raw) - begin for raw, begin in datums], np.int64)
    data = np.frombuffer(b"".join([raw for raw, _ in datums]), np.uint8)
    found = transcript(form.steps, data, begins, ends)
    return [found.at(index) for index in range(len(datums))]


def _one(form: Form, raw: bytes, begin: int) -> bytes | None:
    try:
        return json_of(form.program, raw, begin)
    except DatumError:
        return None
