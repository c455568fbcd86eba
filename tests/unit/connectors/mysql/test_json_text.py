"""One text of a JSON value, however the server or the connector prints it."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.json_text import canonical, canonical_texts


def exact(number):
    """All digits of a double's binary value."""
    return format(Decimal(number), "f")


PAIRS = [  # of a SELECT, of the log, canonical
    ('{"a": [1, null, "x"], "b": 1.0}', '{"a":[1,null,"x"],"b":1.0}', '{"a":[1,null,"x"],"b":1.0}'),
    ("10000000.0", "10000000", "10000000"),
    ("9999999.0", "9999999.0", "9999999.0"),
    ("12345678.9", "12345678.9000000003725290298461914062500", "12345678.9"),
    ("-12345678.5", "-12345678.5", "-12345678.5"),
    ("1e20", "100000000000000000000", "100000000000000000000"),
    ("1.2345678901234568e20", "123456789012345683968", "123456789012345683968"),
    ("1e21", "1000000000000000000000", "1e21"),
    ("1.5e300", str(int(1.5e300)), "1.5e300"),
    ("-1.25e-8", exact(-1.25e-8), "-1.25e-8"),
    ("0.00000001", exact(1e-8), "1e-8"),
    ("0.00001", exact(1e-5), "0.00001"),
    ("1e-5", exact(1e-5), "0.00001"),
    ("0.0005", exact(0.0005), "0.0005"),
    ("1.7976931348623157e308", str(int(1.7976931348623157e308)), "1.7976931348623157e308"),
    # Numbers that are no doubles: as they are.
    ("[1.10]", "[1.10]", "[1.10]"),
    ("12345678.90", "12345678.90", "12345678.90"),
    ("18446744073709551615", "18446744073709551615", "18446744073709551615"),
    ("123456789012345678901234567890", "123456789012345678901234567890", "123456789012345678901234567890"),
    ("0.12345678901234567890123", "0.12345678901234567890123", "0.12345678901234567890123"),
    (r'"a\"b, c: \\ \u0001"', r'"a\"b, c: \\ \u0001"', r'"a\"b, c: \\ \u0001"'),
    (r'"\/ä"', r'"/\u00e4"', '"/ä"'),
    ('"1.0E7, x: y 0.00001"', '"1.0E7, x: y 0.00001"', '"1.0E7, x: y 0.00001"'),
    ("0.0", "0.0", "0.0"),
    ("-0.0", "-0.0", "-0.0"),
]  # fmt: skip


@pytest.mark.parametrize(("select", "log", "expected"), PAIRS)
def test_both_ways_of_printing_give_one_text(select, log, expected):
    assert canonical(select) == expected
    assert canonical(log) == expected
    assert canonical(expected) == expected
    texts = pa.array([select, None, log], pa.string())
    assert canonical_texts(texts).to_pylist() == [expected, None, expected]


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def logged(number):
    """A double as the connector prints it."""
    if not number or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    return exact(number)


def selected(number):
    """A double as the server prints it: by its shortest digits, plainly up to 15 places."""
    shortest = Decimal(repr(number))
    power = shortest.adjusted()
    if not number or -15 < power < 15:
        text = format(shortest, "f")
        return text if "." in text else text + ".0"
    digits = "".join(map(str, shortest.normalize().as_tuple().digits))
    tail = f".{digits[1:]}" if digits[1:] else ""
    return f"{'-' * (number < 0)}{digits[0]}{tail}e{power}"


def printed(tree, number, gap):
    if isinstance(tree, float):
        return number(tree)
    if isinstance(tree, list):
        return "[" + f",{gap}".join(printed(one, number, gap) for one in tree) + "]"
    if isinstance(tree, dict):
        members = (f"{json.dumps(k)}:{gap}{printed(v, number, gap)}" for k, v in tree.items())
        return "{" + f",{gap}".join(members) + "}"
    return json.dumps(tree)


@given(TREES)
def test_any_value_has_one_text_and_keeps_its_meaning(tree):
    found = canonical(printed(tree, selected, " "))
    assert found == canonical(printed(tree, logged, ""))
    assert found == canonical(printed(tree, logged, " "))
    assert json.loads(found) == tree
    assert canonical(found) == found
    texts = [found, printed(tree, logged, ""), printed(tree, selected, " "), None]
    assert canonical_texts(pa.array(texts)).to_pylist() == [found, found, found, None]


def test_no_text_is_lost_that_is_no_json():
    for text in ("", '"\\ud800"', '{"a', "x y", "1e400", "9" * 5000):
        assert isinstance(canonical(text), str)
