"""What a recorded version says of a batch, and when a batch is the one that is recorded."""

from hypothesis import given
from hypothesis import strategies as st

from lakemark.sink.table_sink import batch_of, version_of

BATCHES = st.integers(0, 1 << 30)
CONTENTS = st.integers(0, (1 << 20) - 1)


@given(batch=BATCHES, contents=st.lists(CONTENTS, min_size=1, max_size=20))
def test_a_batch_is_recorded_once_per_change_of_its_content(batch, contents):
    """Engines leave out what is not above the recorded version, so another content is above it."""
    last = None
    for before, content in zip([None, *contents], contents, strict=False):
        version = version_of(batch, content, last)
        if content == before:
            assert version == last
        else:
            assert last is None or version > last
        assert version_of(batch, content, version) == version
        assert batch_of(version) == batch
        assert version < 1 << 63
        last = version


@given(batch=BATCHES, later=st.integers(1, 1000), contents=st.tuples(CONTENTS, CONTENTS))
def test_a_later_batch_is_above_an_earlier_one(batch, later, contents):
    first = version_of(batch, contents[0], None)
    assert version_of(batch + later, contents[1], first) > first
    assert batch_of(version_of(batch + later, contents[1], None)) == batch + later


@given(batch=BATCHES, content=CONTENTS)
def test_a_batch_that_was_recorded_by_its_number_alone_is_applied_again(batch, content):
    assert batch_of(batch) == batch
    assert version_of(batch, content, batch) > batch


def test_more_contents_than_can_be_counted_are_above_each_other_all_the_same():
    last = None
    for number in range(5000):
        version = version_of(7, number % 2, last)
        assert last is None or version > last
        last = version
    assert batch_of(last) == 8, "and then nobody takes the batch for a new one"
