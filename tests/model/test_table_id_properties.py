"""A table's text and its parts say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.settings.table_id import TableId, is_table, pair_of, plain_of, text_of, text_written

PARTS = st.lists(st.text(alphabet='ab."é ', max_size=5), min_size=1, max_size=4).map(tuple)


@given(PARTS)
def test_the_text_stands_for_the_very_parts(parts):
    assert TableId.parse(TableId(parts).text).parts == parts


@given(PARTS, PARTS)
def test_no_two_tables_have_one_text(one, other):
    assert (TableId(one).text == TableId(other).text) == (one == other)


@given(st.text(alphabet='ab."', max_size=8))
def test_a_text_is_that_of_one_table_or_of_none(text):
    try:
        found = TableId.parse(text)
    except ValueError:
        return
    assert found.text == text


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("public", "orders"), "public.orders"),
        (("a.b", "c"), '"a.b".c'),
        (("a", "b.c"), 'a."b.c"'),
        (("Größe", 'a"b'), 'Größe.a"b'),
        (("", 'x".y'), '"".' + '"x"".y"'),
        (("db", "dbo", "t"), "db.dbo.t"),
    ],
)
def test_as_it_is_written(parts, text):
    assert text_of(*parts) == text
    assert TableId.parse(text).parts == parts
    assert TableId.parse(text).plain == ".".join(parts)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", '"a', '"a"b.c', '"ab".c', '"a.b"c'])
def test_what_is_no_tables_text(text):
    with pytest.raises(ValueError, match="is no table's name"):
        TableId.parse(text)


@given(PARTS)
def test_the_plain_name_and_the_pair_are_those_of_the_parts(parts):
    text = text_of(*parts)
    assert plain_of(text) == ".".join(parts)
    assert pair_of(text) == (parts[-2] if len(parts) > 1 else "", parts[-1])
    assert is_table(text) == (len(parts) > 1)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("public.signals", "public.signals"),
        (' "public" . signals', "public.signals"),
        ('"a.b"."c"', '"a.b".c'),
        ('a."b.c"', 'a."b.c"'),
        ('"a""b".c', 'a"b.c'),
        ("", ""),
    ],
)
def test_names_as_debezium_reads_them(written, text):
    assert text_written(written) == text
