"""The forms of values: durations and sizes with their units."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.settings.units import parse_duration, parse_size, show_duration


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=400)))
def test_durations_are_read_back_as_shown(value):
    value -= timedelta(microseconds=value.microseconds % 1000)
    assert parse_duration(show_duration(value)) == value


@pytest.mark.parametrize("odd", ["5", 5, "1 second", "-1s", "", "s", None, 1.5, "1s2"])
def test_durations_without_a_unit_are_refused(odd):
    with pytest.raises(Exception, match="500ms"):
        parse_duration(odd)


@pytest.mark.parametrize(
    ("text", "size"), [("4 MiB", 4194304), ("900kB", 900_000), (7, 7), ("7", 7), ("1b", 1)]
)
def test_sizes(text, size):
    assert parse_size(text) == size
