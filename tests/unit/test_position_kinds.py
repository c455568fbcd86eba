"""Every kind of position keeps the contract, and nobody else need know which kinds there are."""

import pytest

from lakemark.model import positions
from tests.kit import toy_positions
from tests.kit.position_contract import PositionContract


class TestPostgres(PositionContract):
    connector = "postgresql"
    blocks = [
        (1, {"sequence": '["800","808"]', "lsn": 808}),
        (1, {"sequence": '["800","840"]', "lsn": 840}),
        (2, {"sequence": '["880","816"]', "lsn": 816}),  # written while the first one was open
        (2, {"sequence": '["880","888"]', "lsn": 888}),
        (3, {"sequence": '["960","968"]', "lsn": 968}),
    ]
    offset = {"lsn_commit": 960, "lsn": 968, "lsn_proc": 968}


class TestToy(PositionContract):
    connector = toy_positions.CONNECTOR
    blocks = [
        (1, {"block": 7, "row": 0}),
        (1, {"block": 7, "row": 1}),
        (2, {"block": 9, "row": 0}),
        (3, {"block": 1 << 40, "row": 300}),
    ]
    offset = {"block": 1 << 40, "row": 300}

    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch):
        toy_positions.use(monkeypatch)


def test_positions_of_two_kinds_say_nothing_of_each_other(monkeypatch):
    toy_positions.use(monkeypatch)
    ours = positions.rules_of("postgresql").from_source(
        {"sequence": ['["8","8"]'], "lsn": [8]}, None, 0
    )[0]
    toys = toy_positions.pack(0, 1 << 81, 0)
    assert not positions.one_transaction(ours, toys)
    assert not positions.taken_before(toys, ours)
    assert positions.below_truncate(ours, toys) == (ours < toys)


def test_an_unknown_kind_is_no_position():
    assert not positions.is_one(bytes([99]) + bytes(19))
    assert not positions.is_one(b"")
    with pytest.raises(KeyError):
        positions.rules_of("db3000")
