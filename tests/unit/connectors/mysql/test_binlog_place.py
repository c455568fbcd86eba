"""The place that a read has, and the ids that MySQL shows as held."""

import pickle
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.database import Watermark
from lakemark.connectors.mysql.binlog_place import BinlogPlace, Server, covers, held_ids

OWNED = (
    "33cc7b62-eb8a-11f1-9a9d-02fc00000001:9#11:7#1033cc7b62-eb8a-11f1-9a9d-02fc00000001:b:1#14"
    "33cc7b62-eb8a-11f1-9a9d-02fc00000001:tag_a:6#13:5#1243cc7b62-eb8a-11f1-9a9d-02fc00000001:10#15"
)
"""As MySQL 9.7.4 wrote it: nothing stands between a thread and the next server's uuid."""


def test_ids_of_several_servers_and_tags_are_told_apart():
    first, second = "33cc7b62-eb8a-11f1-9a9d-02fc00000001", "43cc7b62-eb8a-11f1-9a9d-02fc00000001"
    assert held_ids(OWNED) == {
        *(f"{first}:7", f"{first}:9", f"{first}:b:1", f"{first}:tag_a:5", f"{first}:tag_a:6"),
        f"{second}:10",
    }
    assert held_ids("") == set()


NUMBERS = st.integers(1, 2**63 - 2)
TAGS = st.from_regex(r"[a-z_][a-z0-9_]{0,31}", fullmatch=True)
SETS = st.dictionaries(
    st.tuples(st.uuids().map(str), st.none() | TAGS),
    st.dictionaries(NUMBERS, st.integers(1, 2**32 - 1), min_size=1, max_size=3),
    max_size=4,
)


@given(SETS, st.sampled_from(["", ",\n", ", "]))
def test_every_id_that_is_held_is_found(held, between):
    texts, expected = [], set()
    for (server, tag), owners in held.items():
        name = server if tag is None else f"{server}:{tag}"
        texts.append(name + "".join(f":{number}#{thread}" for number, thread in owners.items()))
        expected |= {f"{name}:{number}" for number in owners}
    assert held_ids(between.join(texts)) == expected


@given(st.uuids())
def test_a_thread_may_end_in_what_looks_like_the_beginning_of_a_uuid(server: UUID):
    assert held_ids(f"{server}:1#12345678{server}:a:2#9") == {f"{server}:1", f"{server}:a:2"}


SERVER = Server(7, 1_795_000_000)


@pytest.mark.parametrize(
    ("read", "shown"),
    [
        (BinlogPlace(SERVER, 9, 500), True),
        (BinlogPlace(SERVER, 9, 400), True),
        (BinlogPlace(SERVER, 10, 4), True),
        (BinlogPlace(SERVER, 9, 399), False),
        (BinlogPlace(SERVER, 8, 1 << 33), False),
        (BinlogPlace(Server(7, 1_795_000_001), 9, 500), False),
        (BinlogPlace(Server(8, 1_795_000_000), 9, 500), False),
    ],
)
def test_a_read_shows_what_stands_before_its_place_in_the_same_life(read: BinlogPlace, shown: bool):
    after = BinlogPlace(SERVER, 9, 400)
    assert read.shows(Watermark("w", after, after.place)) is shown
    assert pickle.loads(pickle.dumps(read)) == read


@pytest.mark.parametrize(
    ("seen", "logged", "are"),
    [
        ("0-1-4", "0-1-4", True),
        ("0-1-5", "0-1-4", True),
        ("0-1-3", "0-1-4", False),
        ("0-1-10", "0-1-9", True),  # numbers, no texts
        ("0-2-5", "0-1-4", True),  # another server has gone on
        ("0-1-4,7-3-9", "7-3-9,0-1-4", True),
        ("0-1-4,7-3-8", "7-3-9,0-1-4", False),
        ("0-1-4", "0-1-4,7-3-1", False),
        ("", "0-1-1", False),
        ("", "", True),
        ("0-1-4", "", True),
    ],
)
def test_what_is_not_newer_in_any_domain_is_covered(seen, logged, are):
    assert covers(seen, logged) is are
