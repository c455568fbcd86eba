"""Where the connector is in the log, by what Connect has committed for it."""

import pytest

from lakemark.connectors.mysql.committed_offsets import committed_position
from lakemark.connectors.mysql.positions import pack
from lakemark.model import positions

EPOCH = positions.epoch_number("mariadb", 2)


def entry(server="shop", **offset):
    return {"partition": {"server": server}, "offset": offset}


def test_all_events_before_the_place_are_in_kafka_and_none_at_it():
    offset = {"file": "binlog.000012", "pos": 480, "event": 2, "row": 1, "gtids": "0-1-7"}
    at = committed_position([entry(**offset)], EPOCH, server="shop")
    assert at == pack(EPOCH, 12, 480)
    blocks = {"file": ["binlog.000012"] * 2, "pos": [479, 480], "total_order": [9, None]}
    before, first = positions.rules_of("mariadb").from_source(blocks, None, EPOCH)
    assert before < at < first


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(server="other", file="binlog.000001", pos=4)],
        [entry(file="binlog.000001", pos=4, snapshot="INITIAL")],
        [entry(file="binlog.000001")],
        [entry(file="binlog", pos=4)],
        [entry(file=None, pos=4)],
        [{"partition": None, "offset": {"file": "binlog.000001", "pos": 4}}],
        [{"partition": {"server": "shop"}, "offset": None}],
    ],
)
def test_what_says_no_place_is_none(entries):
    assert committed_position(entries, EPOCH, server="shop") == b""


def test_of_several_the_newest_counts():
    entries = [entry(file="b.000009", pos=900), entry(file="b.000010", pos=4)]
    assert committed_position(entries, EPOCH, server="shop") == pack(EPOCH, 10, 4)
