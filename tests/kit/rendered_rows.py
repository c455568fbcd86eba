"""Rows of a chunk, rendered, against what a real connector wrote for the same rows."""

import json
from dataclasses import replace

import msgspec
import pyarrow as pa

from lakemark.sink.rendering import Rendering
from lakemark.source.schema import TableSchema

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
FRACTIONS = {"float", "double"}  # Arrow's names


def with_fractions(schema, digits):
    """A schema with what the catalog knows of fractions."""
    columns = tuple(replace(c, fraction=digits.get(c.name)) for c in schema.columns)
    return TableSchema(schema.table, columns, schema.key)


def assert_rendered_as_written(chunk, modes, *, keys, images, lost):
    """Asserts that keys and images are the same bytes, and counts the values compared.

    Args:
        chunk: rows of one table.
        modes: the connector's settings.
        keys: of the connector's records, in the order of the chunk's rows; perhaps wrapped.
        images: their row images.
        lost: columns whose values the connector loses.
    """
    table = chunk.schema.table
    rendering = Rendering(chunk.schema, modes)
    assert not any(loss.every for loss in rendering.losses)
    rows = pa.concat_arrays(chunk.rows.to_struct_array().chunks)
    written = rendering.keys(rows).objects.to_pylist()
    assert written == [payload(key) for key in keys]
    out = rendering.images(rows)
    compared = 0
    for at, (ours, theirs) in enumerate(zip(out.objects.to_pylist(), images, strict=True)):
        got, wanted = MEMBERS.decode(ours), MEMBERS.decode(theirs)
        assert list(got) == list(wanted)
        for name in got:
            if name not in lost and at not in out.inexact.get(name, ()):
                kind = str(chunk.schema.column(name).type)
                assert_same(bytes(got[name]), bytes(wanted[name]), (table, name), kind)
                compared += 1
    return compared


def assert_same(ours, theirs, where, kind):
    """Java 17 has a digit too many for some numbers; they are the same numbers."""
    if ours != theirs and any(word in kind for word in FRACTIONS):
        ours, theirs = json.loads(ours), json.loads(theirs)
    assert ours == theirs, where


def payload(key):
    members = MEMBERS.decode(key)
    return bytes(members["payload"]) if members.keys() == {"schema", "payload"} else key
