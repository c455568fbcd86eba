"""Positions of MySQL and MariaDB: as recorded, and of any log that dice make."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql import positions as places
from lakemark.converters.json import envelope
from lakemark.model import positions
from lakemark.model.events import Kind, SourceIdentity

GOLDEN = Path(__file__).parents[3] / "golden" / "mysql"
KIND = positions.epoch_number("mysql", 0)
RECORDED = {"mariadb_json": "mariadb", "mariadb11_json": "mariadb", "mysql_json": "mysql"}


def recorded(name):
    """Label, header and position of each change event, by partition, in the order of offsets."""
    found = sorted(
        json.loads((GOLDEN / f"{name}.json").read_text()).items(),
        key=lambda item: (item[1]["topic"], item[1]["partition"], item[1]["offset"]),
    )
    values = [msgspec.json.encode(r["value"]) if r["value"] else None for _, r in found]
    keys = [msgspec.json.encode(r["key"]) if r["key"] else None for _, r in found]
    connector = RECORDED[name]
    prefix = next(
        r["value"]["source"]["name"] for _, r in found if (r["value"] or {}).get("source")
    )
    heads = envelope.decode(values, keys, identity=SourceIdentity(connector, prefix), epoch=KIND)
    by_partition = defaultdict(list)
    for at, (label, record) in enumerate(found):
        by_partition[record["topic"], record["partition"]].append(
            (label, heads.kind[at], heads.position[at], record["value"], heads.reason[at])
        )
    return by_partition


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_events_stand_in_their_partition_in_the_order_of_the_log(name):
    events = reads = 0
    for rows in recorded(name).values():
        stream = [
            (label, at) for label, kind, at, _, _ in rows if kind in (Kind.CHANGE, Kind.TRUNCATE)
        ]
        assert all(one[1] <= other[1] for one, other in pairwise(stream)), stream
        for label, kind, at, _, reason in rows:
            assert kind != Kind.BAD, (label, reason)
            if kind == Kind.OWN_SNAPSHOT:
                assert positions.is_own_snapshot(at)
                assert all(positions.taken_before(at, event) for _, event in stream)
            if kind == Kind.INCREMENTAL:
                reads += 1
                assert all(positions.outside_stream(at) < event for _, event in stream)
        events += len(stream)
    assert events > 20
    assert reads or name == "mariadb11_json"


def test_events_of_one_place_are_told_apart_by_their_order_in_the_transaction():
    rows = [row for rows in recorded("mariadb11_json").values() for row in rows]
    of_place = defaultdict(list)
    for _, kind, at, value, _ in rows:
        if kind == Kind.CHANGE:
            source = value["source"]
            of_place[source["file"], source["pos"], source["row"]].append(at)
    shared = [found for found in of_place.values() if len(found) > 1]
    assert max(map(len, shared)) == 6, "six changes of one key swap"
    assert all(len(set(found)) == len(found) for found in shared)


def test_without_an_order_events_of_one_place_are_equal():
    blocks = {"file": ["a.000001"] * 2, "pos": [4, 4], "total_order": [None, None]}
    one, other = places.POSITIONS.from_source(blocks, None, KIND)
    assert one == other
    assert one > places.pack(KIND, 1, 4), "a chunk of this place stands before them"


@pytest.mark.parametrize(
    "block",
    [
        {"file": None, "pos": 4},
        {"file": "binlog", "pos": 4},
        {"file": "binlog.00000x", "pos": 4},
        {"file": "binlog.99999999999", "pos": 4},
        {"file": "binlog.9999999999", "pos": 4},
        {"file": "binlog.000001", "pos": None},
        {"file": "binlog.000001", "pos": -1},
        {"file": "binlog.000001", "pos": 1 << 63},
    ],
)
def test_what_is_no_place_in_a_log_is_no_position(block):
    fields = {name: [block.get(name)] for name in ("file", "pos", "total_order")}
    assert places.POSITIONS.from_source(fields, None, KIND) == [None]
    assert places.POSITIONS.from_source(fields, [True], KIND) == [None]


def test_a_row_of_an_output_topic_has_its_file_under_the_name_that_the_server_gives():
    at = places.pack(KIND, 1_000_000, 77, 1)
    like = {"file": "shop-bin.000123", "pos": 5, "row": 3}
    assert positions.to_source(at, like) == {"file": "shop-bin.1000000", "pos": 77, "row": 0}
    assert positions.to_source(places.pack(KIND, 9, 4, 1), like)["file"] == "shop-bin.000009"


PLACES = st.tuples(
    st.sampled_from([1, 2, 9, 10, 999_999, 1_000_000, 8_000_000]),
    st.sampled_from([4, 157, 70_000, 1 << 31, 1 << 33]),
    st.integers(0, 3),
)


@given(found=st.lists(PLACES, min_size=2, max_size=12))
def test_positions_compare_as_the_places_of_the_log(found):
    """By the number of the file: as a text ``binlog.999999`` is behind ``binlog.1000000``."""
    fields = {
        "file": [f"binlog.{file:06d}" for file, _, _ in found],
        "pos": [pos for _, pos, _ in found],
        "total_order": [order for _, _, order in found],
    }
    made = places.POSITIONS.from_source(fields, None, KIND)
    assert [found.index(place) for place in sorted(found)] == [
        made.index(at) for at in sorted(made)
    ]
    for place, at in zip(found, made, strict=True):
        assert places.unpack(at) == (KIND, place[0], place[1], place[2] + 1)
        assert places.pack(KIND, place[0], place[1]) < at


@given(read=PLACES, event=PLACES)
def test_a_snapshot_of_the_connector_shows_the_log_up_to_its_place(read, event):
    fields = {"file": [f"b.{read[0]}"], "pos": [read[1]], "total_order": [None]}
    (own,) = places.POSITIONS.from_source(fields, [True], KIND)
    at = places.pack(KIND, *event)
    later = read[:2] <= event[:2]
    assert positions.taken_before(own, at) == later
    assert positions.below_truncate(own, at) == later
    assert own < at, "in a table nothing loses against it"


# -- the schema topic -------------------------------------------------------------------------------


def schema_change(**source) -> bytes:
    """A record of the schema topic as MariaDB's connector writes it."""
    block = {
        "version": "3.5.0.Final", "connector": "mariadb", "name": "shop", "ts_ms": 1795718490434,
        "snapshot": "true", "db": "shop", "sequence": None, "ts_us": 1795718490434411,
        "table": "orders", "server_id": 0, "gtid": None, "file": "binlog.000004", "pos": 13264,
        "row": 0, "thread": None, "query": None,
    }  # fmt: skip
    return json.dumps({
        "source": block | source, "ts_ms": 1795718490500, "databaseName": "shop",
        "schemaName": None, "ddl": "CREATE TABLE `orders` (…)", "tableChanges": [],
    }).encode()  # fmt: skip


def test_a_structure_that_was_read_has_the_place_of_that_read():
    said = [
        schema_change(),
        schema_change(snapshot="false", gtid="0-101-1"),
        schema_change(file="binlog.000005", pos=4),
        schema_change(file=None),
    ]
    identity = SourceIdentity("mariadb", "shop")
    found = envelope.decode(said, [b"{}"] * 4, identity=identity, epoch=KIND)
    assert found.kind == [Kind.SCHEMA_CHANGE] * 4
    assert found.table == [""] * 4
    read, told, later, nowhere = found.position
    assert (told, nowhere) == (positions.LOWEST, positions.LOWEST)
    assert [positions.is_own_snapshot(one) for one in (read, later)] == [True, True]
    assert positions.snapshot_of(read) < positions.snapshot_of(later)


def test_what_was_read_stands_before_the_statement_at_its_place_or_behind_it():
    statement = places.pack(KIND, 3, 400, 1)
    own = places.POSITIONS.from_source(
        {"file": ["b.3"], "pos": [400], "total_order": [None]}, [True], KIND
    )
    read = positions.outside_stream(places.pack(KIND, 3, 400, 7))
    assert positions.in_stream(own[0]) < statement < positions.in_stream(read)
    assert positions.in_stream(statement) == statement
    assert positions.in_stream(read) < places.pack(KIND, 3, 401, 0)
    assert positions.in_stream(positions.LOWEST) == positions.LOWEST
