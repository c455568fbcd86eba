"""Rows of a chunk, rendered, against what a real connector wrote for the same rows."""

import json
import re
from dataclasses import replace

import msgspec
import pyarrow as pa

from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows
from lakemark.model.schema import TableSchema

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
FRACTIONS = {"float", "double"}  # Arrow's names
MOMENT = "timestamp[us, tz=UTC]"
STREAMED_NULL = {"name"}  # of that type the connector streams null, whatever the value is
SAME = ("version", "connector", "name", "snapshot", "db", "schema", "table")
NULL = ("txId", "lsn", "xmin", "origin", "origin_lsn", "thread", "query")


def with_modifiers(schema, digits):
    """A schema with what the catalog knows of modifiers."""
    columns = tuple(replace(c, modifier=digits.get(c.name)) for c in schema.columns)
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


def assert_read_as_written(ours, theirs, schema, modes):
    """Asserts that rows which were read are the connector's own records, and counts the values.

    Byte for byte but for what `Rendering` says it cannot know, and for positions and times.

    Args:
        ours, theirs: values of records by key, perhaps wrapped.
        schema: of the table.
        modes: the connector's settings.
    """
    assert ours.keys() == theirs.keys()
    compared = 0
    for key, value in ours.items():
        got, wanted = members(value), members(theirs[key])
        assert list(got) == list(wanted)
        if list(wanted) == ["schema", "payload"]:
            assert got["schema"] == wanted["schema"]
            got, wanted = members(got["payload"]), members(wanted["payload"])
            assert list(got) == list(wanted)
        assert {n: got[n] for n in ("before", "op", "transaction")} == {
            n: wanted[n] for n in ("before", "op", "transaction")
        }
        said, expected = members(got["source"]), members(wanted["source"])
        assert list(said) == list(expected)
        same, null = ([n for n in names if n in said] for names in (SAME, NULL))
        assert {n: said[n] for n in same} == {n: expected[n] for n in same}
        assert {block[n] for block in (said, expected) for n in null} <= {b"null"}
        image = decode_rows([wanted["after"]], schema, modes).columns
        inexact = Rendering(schema, modes).images(image).inexact
        row, other = members(got["after"]), members(wanted["after"])
        assert list(row) == list(other)
        for name in row.keys() - STREAMED_NULL - inexact.keys():
            assert_same(row[name], other[name], name, str(schema.column(name).type))
            compared += 1
    return compared


def members(raw):
    return {name: bytes(value) for name, value in MEMBERS.decode(raw).items()}


def assert_same(ours, theirs, where, kind):
    """Java 17 has a digit too many for some numbers; they are the same numbers.

    MariaDB's and MySQL's connectors leave out the zeros at the end of a moment in reads alone, not
    in events: ours is as an event's.
    """
    if ours != theirs and any(word in kind for word in FRACTIONS):
        ours, theirs = json.loads(ours), json.loads(theirs)
    if ours != theirs and kind == MOMENT:
        ours, theirs = (json.loads(text) for text in (ours, theirs))
        ours = re.sub(r"\.?0+Z$", "Z", ours) if "." in ours else ours
    assert ours == theirs, where


def payload(key):
    members = MEMBERS.decode(key)
    return bytes(members["payload"]) if members.keys() == {"schema", "payload"} else key
