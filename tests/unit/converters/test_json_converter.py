"""Single values are written as Kafka Connect's JsonConverter on Java 25 really wrote them."""

import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from lakemark.converters.json import json_numbers, json_texts
from lakemark.converters.json.numerals import EXACT
from tests.kit.row_images import GOLDEN

LINES = [
    tuple(line.split("\t"))
    for line in (GOLDEN / "json_converter.tsv").read_text(encoding="utf-8").split("\n")
    if line
]


def samples(kind):
    found = [(given, text) for k, given, text in LINES if k == kind]
    assert found
    return [given for given, _ in found], [text for _, text in found]


def bits(code, width):
    return lambda given: struct.unpack(f">{code}", bytes.fromhex(given.rjust(width, "0")))[0]


def decimal(given):
    unscaled, _, scale = given.partition("e")
    return Decimal(int(unscaled)).scaleb(-int(scale), EXACT)


@pytest.mark.parametrize(
    ("kind", "read", "width", "type_"),
    [("double", "d", 16, pa.float64()), ("float", "f", 8, pa.float32())],
)
def test_doubles_and_floats(kind, read, width, type_):
    given, wanted = samples(kind)
    values = pa.array([*map(bits(read, width), given), None], type_, from_pandas=False)
    assert json_numbers.floats(values).to_pylist() == [*wanted, None]


def test_strings_together_and_alone():
    given, wanted = samples("string")
    texts = [bytes.fromhex(one).decode() for one in given]
    assert json_texts.strings(pa.array([None, *texts])).to_pylist() == [None, *wanted]
    assert [json_texts.quoted(text) for text in texts] == wanted
    sliced = pa.array(["\\", None, *texts]).slice(2)
    assert json_texts.strings(sliced).to_pylist() == wanted


def test_strings_without_anything_to_escape():
    texts = pa.array(["a", None, "", "é/"])
    assert json_texts.strings(texts).to_pylist() == ['"a"', None, '""', '"é/"']
    assert json_texts.strings(pa.array([None, None], pa.string())).to_pylist() == [None, None]
    assert json_texts.strings(pa.array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize("scale", range(12))
@pytest.mark.parametrize("precision", [18, 38])
def test_decimals_in_arrow(scale, precision):
    pairs = [
        (value, text)
        for given, text in zip(*samples("base64"), strict=True)
        if -(value := decimal(given)).as_tuple().exponent == scale
        and len(value.as_tuple().digits) <= precision
    ]
    assert pairs
    given = pa.array([None, *(v for v, _ in pairs)], pa.decimal128(precision, scale))
    wanted = [None, *(text for _, text in pairs)]
    assert json_numbers.decimals(given).to_pylist() == wanted
    assert json_numbers.decimals(given.slice(1)).to_pylist() == wanted[1:]
    for value, text in pairs:  # alone, the width is that of the value
        one = pa.array([value], given.type)
        assert json_numbers.decimals(one).to_pylist() == [text]


def test_decimals_as_texts():
    given, wanted = samples("base64")
    for one, text in zip(given, wanted, strict=True):
        plain = format(decimal(one), "f")
        assert json_numbers.coded_text(plain, int(one.partition("e")[2])) == text


def test_decimals_as_numbers():
    given, wanted = samples("numeric")
    assert [json_numbers.numeric_text(decimal(one)) for one in given] == wanted


def test_a_text_that_is_no_decimal_of_the_scale_is_an_error():
    for text, scale in (("1.25", 1), ("NaN", 2), ("-Infinity", 2)):
        with pytest.raises(ValueError, match="decimal"):
            json_numbers.scaled(text, scale)
