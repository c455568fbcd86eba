"""Values of unchanged TOAST columns put into the connector's own events."""

import json

import pyarrow as pa
import pytest

from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.splicing import spliced
from lakemark.model.handling_modes import HandlingModes
from tests.kit.golden import samples
from tests.kit.row_images import field, table

BIO = 'long "text" \\ é 😀 __debezium_unavailable_value'


def bio(value):
    column = Rendering(table(field("bio", "string")), HandlingModes())
    return column.fragments("bio", pa.array([value]))[0].as_py()


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_placeholder_of_a_real_event(wrapped):
    event = samples(wrapped=wrapped)["u_toast_unchanged_unavailable_value"].value
    out = spliced(event, after={"bio": bio(BIO)})
    assert out == event.replace(b'"__debezium_unavailable_value"', bio(BIO))
    read = json.loads(out)
    assert (read["payload"] if wrapped else read)["after"]["bio"] == BIO
    assert spliced(event) == event


def test_the_text_of_a_placeholder_in_other_columns_stays():
    event = (
        b'{"before":{"a":"P","b":"P"},"after":{"x":{"b":"P"},"a":"P","b":"P","c":"\\"b\\":\\"P\\""},'
        b'"source":{"after":{"b":"P"},"b":"P"},"op":"u"}'
    )
    assert spliced(event, after={"b": b"1"}) == (
        b'{"before":{"a":"P","b":"P"},"after":{"x":{"b":"P"},"a":"P","b":1,"c":"\\"b\\":\\"P\\""},'
        b'"source":{"after":{"b":"P"},"b":"P"},"op":"u"}'
    )
    assert spliced(event, before={"a": b"null"}, after={"c": b"[1]", "a": b'"P"'}) == (
        b'{"before":{"a":null,"b":"P"},"after":{"x":{"b":"P"},"a":"P","b":"P","c":[1]},'
        b'"source":{"after":{"b":"P"},"b":"P"},"op":"u"}'
    )


def test_a_row_whose_columns_are_called_as_the_wrapper_members():
    event = b'{"before":null,"after":{"schema":1,"payload":{"after":{"payload":2}}},"op":"c"}'
    assert spliced(event, after={"payload": b"3"}) == (
        b'{"before":null,"after":{"schema":1,"payload":3},"op":"c"}'
    )
    event = b'{"after":{"b":1},"payload":{"after":{"b":2}}}'
    assert spliced(event, after={"b": b"3"}) == b'{"after":{"b":3},"payload":{"after":{"b":2}}}'


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'{"before":null,"after":null}', "no after image"),
        (b'{"before":null}', "no after image"),
        (b'{"after":{"a":1}}', "lacks 'b'"),
        (b"[1]", "not '{'"),
        (b'{"after":{"b":[1}', "ends within"),
        (b"", "not '{'"),
    ],
)
def test_what_cannot_be_spliced_is_named(event, message):
    with pytest.raises(ValueError, match=message):
        spliced(event, after={"b": b"1"})
