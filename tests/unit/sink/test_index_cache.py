"""What a process keeps of indexes in memory stays within its bounds."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemark.sink.delta import index_cache
from lakemark.sink.delta.key_index import KeyIndex

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "drop"]), st.sampled_from("abcdef"), st.integers(1, 9)
    ),
    max_size=30,
)


def index(rows: int) -> KeyIndex:
    return KeyIndex(
        np.arange(rows, dtype=np.uint64), None, np.arange(rows, dtype=np.uint32), rows, b""
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, most=st.integers(0, 300), entries=st.integers(1, 6))
def test_bytes_are_counted_as_entries_come_and_go(cache, steps, most, entries):
    index_cache.forget()
    with pytest.MonkeyPatch.context() as context:
        context.setattr(index_cache, "_MOST_MAPPED", most)
        context.setattr(index_cache, "_MOST_ENTRIES", entries)
        for step, name, rows in steps:
            if step == "put":
                index_cache.put(name, index(rows))
            elif step == "get":
                index_cache.get(name)
            else:
                index_cache.drop(name)
                assert index_cache.get(name) is None
            kept = list(index_cache._entries.values())
            assert index_cache._bytes[0] == sum(one.bytes for one in kept)
            assert index_cache._bytes[0] <= most
            assert len(kept) <= entries


def test_the_entry_that_was_used_longest_ago_goes_first(cache, monkeypatch):
    monkeypatch.setattr(index_cache, "_MOST_ENTRIES", 2)
    for name in "ab":
        index_cache.put(name, index(3))
    index_cache.get("a")
    index_cache.put("c", index(3))
    assert list(index_cache._entries) == ["a", "c"]
    assert index_cache.get("b").records == 3  # it is on the disk
