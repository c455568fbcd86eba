"""What watches the output topics in live tests sees a step back."""

import json

from stack.kafka import Kafka
from tests.kit.output_topics import OutputTopic, Seen


def topic_of(*rows: tuple[str, int | None, int]) -> OutputTopic:
    """Records of keys with their number, None for a delete, and their position."""
    seen = []
    for offset, (key, number, position) in enumerate(rows):
        after = None if number is None else {"n": number}
        value = json.dumps({"op": "d" if after is None else "u", "after": after}).encode()
        headers = {
            "lakemark.position": f"{position:040x}".encode(),
            "lakemark.id": f"{position}/{key}".encode(),
        }
        seen.append(Seen(0, offset, key.encode(), value, headers, offset))
    return OutputTopic(Kafka.__new__(Kafka), "t", seen)


def test_a_row_that_is_older_than_one_before_it_is_seen_whatever_its_header_says():
    told = topic_of(("a", 5, 1), ("b", 1, 2), ("a", None, 3), ("a", 4, 4), ("a", 6, 5))
    assert told.steps_back() == []
    (found,) = told.falls("n")
    assert found.startswith("b'a' fell from 5 to 4")


def test_rows_that_grow_or_stay_are_no_fall():
    assert topic_of(("a", 5, 1), ("a", 5, 1), ("b", 1, 2), ("a", 7, 3)).falls("n") == []


def test_a_position_that_falls_is_seen_whatever_the_row_says():
    (found,) = topic_of(("a", 5, 4), ("a", 6, 3)).steps_back()
    assert "went back" in found
