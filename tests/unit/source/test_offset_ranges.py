"""Which records a step reads, and how its tasks share them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.model.offsets import EARLIEST
from lakemark.source.offset_ranges import OffsetRange, between, shared


def test_what_stands_between_two_offsets_of_each_partition():
    start = {"a": {0: 5, 1: 7}, "b": {0: 3}}
    end = {"a": {0: 9, 1: 7, 2: 4}, "b": {0: 3}, "new": {0: 2, 1: 0}}
    assert between(start, end) == [
        OffsetRange("a", 0, 5, 9),
        OffsetRange("a", 2, 0, 4),
        OffsetRange("new", 0, 0, 2),
    ]


def test_from_the_first_record_that_is_left():
    (one,) = between({"a": {0: EARLIEST}}, {"a": {0: 4}})
    assert one == OffsetRange("a", 0, EARLIEST, 4)
    assert one.size == 4


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"a": {0: 4}}, "a-0 ends at offset 4, and was read up to 5"),
        ({"a": {1: 9}}, "a-0 is gone; it was read up to offset 5"),
        ({}, "a-0 is gone"),
    ],
)
def test_what_kafka_no_longer_has_is_an_error(end, said: str):
    with pytest.raises(DependencyError, match=said) as caught:
        between({"a": {0: 5}}, end)
    assert caught.value.code == "source-data-expired"


ranges = st.lists(
    st.builds(
        lambda topic, partition, start, size: OffsetRange(topic, partition, start, start + size),
        st.sampled_from("abc"),
        st.integers(0, 30),
        st.integers(0, 1000),
        st.integers(1, 10_000),
    ),
    unique_by=lambda one: one[:2],
)


@given(ranges, st.integers(1, 8))
def test_every_range_is_one_tasks_and_no_task_has_nothing(found: list[OffsetRange], tasks: int):
    shares = shared(found, tasks)
    assert sorted(one for share in shares for one in share) == sorted(found)
    assert len(shares) == min(tasks, len(found))
    assert all(shares)


@given(ranges, st.integers(1, 8))
def test_tasks_have_alike_many_records(found: list[OffsetRange], tasks: int):
    loads = [sum(one.size for one in share) for share in shared(found, tasks)]
    if loads:  # the largest share without its smallest range is no larger than any other
        largest = max(loads)
        smallest = min(
            one.size
            for share in shared(found, tasks)
            if sum(one.size for one in share) == largest
            for one in share
        )
        assert largest - smallest <= min(loads)
