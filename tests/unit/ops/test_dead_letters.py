"""Dead letters read again: what was written, each id once, by table, reason and time."""

from datetime import UTC, datetime

import pytest

from lakemark.model.decoding import DeadLetter
from lakemark.ops.dead_letters import Count, LetterFilter, by_time, chosen, letter_of, summary
from lakemark.sink.output import dead_letter

TOPIC = "shop.public.orders"


def letter(offset=5, *, reason="invalid-json", table="public.orders", topic=TOPIC, at=1000):
    written = DeadLetter(topic, 0, offset, reason, "byte 3", b"k", b"{]", table)
    return letter_of(written.key, written.value, dead_letter.headers(written), at)


def test_what_the_pipeline_writes_is_read():
    found = letter(at=1_700_000_000_500)
    assert (found.id, found.reason, found.detail) == (f"{TOPIC}-0-5", "invalid-json", "byte 3")
    assert (found.table, found.topic, found.partition, found.offset) == (
        "public.orders", TOPIC, 0, 5,
    )  # fmt: skip
    assert (found.key, found.value, found.size) == (b"k", b"{]", 2)
    assert found.written == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert b"{]" not in repr(found).encode()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("other", b"x")],
        [("lakemark.id", b"x")],
        [("lakemark.id", b"x"), ("lakemark.reason", b"r"), ("lakemark.topic", b"t"),
         ("lakemark.partition", b"zero"), ("lakemark.offset", b"1")],
        [("lakemark.id", None), ("lakemark.reason", b"\xff")],
    ],
)  # fmt: skip
def test_a_record_that_is_no_dead_letter_is_none(headers):
    assert letter_of(b"k", b"v", headers, 1) is None


@pytest.mark.parametrize("at", [None, 10**20])
def test_a_time_that_nobody_knows(at):
    assert letter(at=at).written is None


def test_each_id_once_as_first_seen():
    first, again, other = letter(5, at=1), letter(5, at=2), letter(6)
    assert list(chosen([None, first, again, other, first], LetterFilter())) == [first, other]


def test_the_table_is_that_of_the_topic_where_the_record_does_not_say():
    assert letter(table="").table == "public.orders"
    assert letter(table="", topic="a.b.public.orders").table == "public.orders"
    assert letter(table="", topic="events").table == ""
    assert letter(table="public.orders", topic="events").table == "public.orders"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (LetterFilter(), {1, 2, 3, 4}),
        (LetterFilter(table="public.orders"), {1, 2}),
        (LetterFilter(table="public.o d"), {4}),
        (LetterFilter(reason="null-key"), {2, 3}),
        (LetterFilter(table="public.orders", reason="null-key"), {2}),
        (LetterFilter(ids=frozenset({f"{TOPIC}-0-1", "shop.public.items-0-3", "x"})), {1, 3}),
        (LetterFilter(since=datetime.fromtimestamp(3, UTC)), {3, 4}),
    ],
)
def test_what_is_wanted(wanted, found):
    letters = [
        letter(1, at=1000),
        letter(2, at=2000, table="", reason="null-key"),
        letter(3, at=3000, table="public.items", topic="shop.public.items", reason="null-key"),
        letter(4, at=4000, table="", topic="shop.public.o_d"),  # as topics write other characters
    ]
    assert {one.offset for one in chosen(letters, wanted)} == found


def test_in_order_and_counted():
    letters = [
        letter(3, at=9),
        letter(2, at=5, reason="null-key"),
        letter(1, at=5),
        letter(7, at=None),
    ]
    assert [one.offset for one in by_time(letters)] == [7, 1, 2, 3]
    assert summary(letters) == [
        Count("public.orders", "invalid-json", 3),
        Count("public.orders", "null-key", 1),
    ]
