"""One text of a JSON value, however the server or the connector prints it."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.json_text import canonical, canonical_texts

PAIRS = [  # of a SELECT, of the log, canonical
    ('{"a": [1, null, "x"], "b": 1.0}', '{"a":[1,null,"x"],"b":1.0}', '{"a":[1,null,"x"],"b":1.0}'),
    ("10000000.0", "1.0E7", "10000000.0"),
    ("1e20", "1.0E20", "100000000000000000000.0"),
    ("1e21", "1.0E21", "1e21"),
    ("1.5e300", "1.5E300", "1.5e300"),
    ("-1.25e-8", "-1.25E-8", "-1.25e-8"),
    ("0.00001", "1.0E-5", "0.00001"),
    ("1.7976931348623157e308", "1.7976931348623157E308", "1.7976931348623157e308"),
    ("[1.10]", "[1.10]", "[1.10]"),
    (r'"a\"b, c: \\ \u0001"', r'"a\"b, c: \\ \u0001"', r'"a\"b, c: \\ \u0001"'),
    (r'"\/ä"', r'"/\u00e4"', '"/ä"'),
    ('"1.0E7, x: y"', '"1.0E7, x: y"', '"1.0E7, x: y"'),
    ("0.0", "0.0E0", "0.0"),
]


@pytest.mark.parametrize(("selected", "logged", "expected"), PAIRS)
def test_both_ways_of_printing_give_one_text(selected, logged, expected):
    assert canonical(selected) == expected
    assert canonical(logged) == expected
    assert canonical(expected) == expected
    texts = pa.array([selected, None, logged], pa.string())
    assert canonical_texts(texts).to_pylist() == [expected, None, expected]


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def java(text):
    """A number as Java prints it, of one that Python has printed."""
    power = Decimal(text).adjusted()
    if "." in text or "e" in text:
        digits = "".join(map(str, Decimal(text).normalize().as_tuple().digits))
        return f"{'-' * text.startswith('-')}{digits[0]}.{digits[1:] or '0'}E{power}"
    return text


def printed(tree, number, gap):
    if isinstance(tree, float):
        return number(repr(tree))
    if isinstance(tree, list):
        return "[" + f",{gap}".join(printed(one, number, gap) for one in tree) + "]"
    if isinstance(tree, dict):
        members = (f"{json.dumps(k)}:{gap}{printed(v, number, gap)}" for k, v in tree.items())
        return "{" + f",{gap}".join(members) + "}"
    return json.dumps(tree)


@given(TREES)
def test_any_value_has_one_text_and_keeps_its_meaning(tree):
    found = canonical(printed(tree, lambda text: text, " "))
    assert found == canonical(printed(tree, java, ""))
    assert json.loads(found) == tree
    assert canonical(found) == found
    texts = [found, printed(tree, java, ""), printed(tree, lambda text: text, " "), None]
    assert canonical_texts(pa.array(texts)).to_pylist() == [found, found, found, None]


def test_no_text_is_lost_that_is_no_json():
    for text in ("", '"\\ud800"', '{"a', "x y"):
        assert isinstance(canonical(text), str)
