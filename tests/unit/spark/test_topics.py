"""Spark reads the topics that a pattern names, and no others in whose names it is found."""

import re

from hypothesis import given
from hypothesis import strategies as st

from lakemark.spark import topics

NAMES = (
    "shop",
    "shop.public.orders",
    "shop.progress",
    "a.shop.public.orders",
    "shop.public.ordersx",
)
PATTERNS = (
    "shop",
    r"shop\.[^.]+\.orders",
    r"shop\.public\..+|shop",
    r"(?!shop\.progress$)(?:shop.*)",
)


class Reader:
    """What is told to Spark's reader."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.readStream = self

    def format(self, _: str) -> "Reader":
        return self

    def option(self, name: str, value: str) -> "Reader":
        self.told[name] = value
        return self

    def load(self) -> "Reader":
        return self

    def select(self, *_: str) -> "Reader":
        return self


@given(st.sampled_from(PATTERNS), st.sampled_from(NAMES))
def test_a_topic_is_read_if_its_whole_name_matches(pattern, name):
    reader = Reader()
    topics.change_stream(reader, {}, pattern=pattern, starting="earliest", max_events=1)
    found = re.search(reader.told["subscribePattern"], name)  # so Spark looks for it
    assert bool(found) == bool(re.fullmatch(pattern, name))
