"""MariaDB's UUIDs, as the log's events have them, and what they were."""

from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lakemark.connectors.mysql.uuids import candidates, mended, mended_texts


def logged(text):
    """The text that an event of the log has: zero bytes at the end are cut, and put in front."""
    cut = UUID(text).bytes.rstrip(b"\0")
    return str(UUID(bytes=cut.rjust(16, b"\0")))


def test_the_recorded_one():
    assert logged("123e4567-e89b-12d3-a456-426614174000") == "00123e45-67e8-9b12-d3a4-564266141740"
    assert mended("00123e45-67e8-9b12-d3a4-564266141740") == "123e4567-e89b-12d3-a456-426614174000"


@given(st.binary(min_size=16, max_size=16), st.integers(0, 10))
def test_the_value_is_one_of_the_candidates_and_never_mended_into_another(raw, zeros):
    """Of values with the marks of RFC 9562; others may only be uncertain or themselves."""
    text = str(UUID(bytes=raw[: 16 - zeros] + bytes(zeros), version=4))
    assert text in candidates(logged(text))
    assert mended(logged(text)) in (text, None)


@given(st.binary(min_size=16, max_size=16), st.integers(1, 8), st.integers(0, 16))
def test_a_row_of_a_snapshot_is_not_mended_into_another_value(raw, version, zeros):
    number = int.from_bytes(raw) >> (8 * zeros) & ~(0xF << 76) & ~(0x3 << 62)
    text = str(UUID(int=number | version << 76 | 0x2 << 62))
    assert UUID(text).version == version
    assert mended(text) in (text, None)


@given(st.uuids(version=4))
def test_what_begins_with_no_zero_byte_is_as_it_is(value):
    assume(value.bytes[0])
    assert candidates(str(value)) == (str(value),)
    assert mended(str(value)) == str(value)


def test_zero_and_what_ends_in_zero_have_lost_nothing():
    for text in (str(UUID(int=0)), "00123e45-67e8-4b12-93a4-564266141700"):
        assert candidates(text) == (text,)
        assert mended(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000001",  # no candidate has the marks
        "00123e45-6748-4b12-9394-564266141740",  # two have
    ],
)
def test_what_is_not_certain_says_so(text):
    assert len(candidates(text)) > 1
    assert mended(text) is None
    with pytest.raises(ValueError, match="uuid"):
        mended_texts(pa.array([str(uuid4()), text]))


def test_a_column():
    texts = ["00123e45-67e8-9b12-d3a4-564266141740", None, "a23e4567-e89b-12d3-a456-426614174001"]
    assert mended_texts(pa.array(texts, pa.string())).to_pylist() == [
        "123e4567-e89b-12d3-a456-426614174000",
        None,
        texts[2],
    ]
    assert mended_texts(pa.array([None], pa.string())).to_pylist() == [None]
