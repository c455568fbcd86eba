"""Whatever the bytes are, a stretch comes to packets, dead letters or a stopped table."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.errors import TableError
from lakemark.model import change_batch
from lakemark.model.decoding import StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.resolve import Part, resolve
from lakemark.source import decoder
from tests.kit.log_model import TABLE, Database, Shape, table_schema
from tests.kit.log_records import Connector
from tests.kit.nightly import examples
from tests.kit.table_model import DictLake, kafka

_PIECES = [b"null", b"{}", b"[]", b'"', b"}", b"-1", b"1e400", b"\xff", b'{"id":', b'"x"', b""]


def _damaged(raw, dice):
    """Some bytes of the text replaced, mostly whole JSON tokens."""
    if raw is None or dice.random() < 0.5:
        return raw
    begin = dice.randrange(len(raw) + 1)
    end = min(len(raw), begin + dice.choice([0, 1, 4, 40]))
    return raw[:begin] + dice.choice(_PIECES) + raw[end:]


@given(seed=st.integers(0, 2**32), wrapped=st.booleans(), known=st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_damaged_records_never_raise(seed, wrapped, known):
    dice = random.Random(seed)
    shape = Shape(partitions=1, wrapped=wrapped, transactions=3)
    (records,) = Connector(Database(shape, dice).run(), dice).run()
    records = [
        replace(
            record,
            key=_damaged(record.key, dice),
            value=_damaged(record.value, dice),
            headers=[{**h, "value": _damaged(h["value"], dice)} for h in record.headers],
        )
        for record in records
    ]
    plan = StretchPlan(
        SourceIdentity("postgresql", "shop"),
        HandlingModes(),
        schemas={TABLE: table_schema()} if known else {},
        verified=frozenset({TABLE}),
    )
    raw = kafka(records, 0, 0)
    done = decoder.decode_range(raw, plan)
    assert decoder.decode_range(raw, plan).applied_position == done.applied_position
    assert {letter.offset for letter in done.dead} <= set(raw.offsets)
    for letter in done.dead:
        assert (letter.key, letter.value) == (raw.keys[letter.offset], raw.values[letter.offset])
    mine = [packet for table, packet in done.packets if table == TABLE]
    if mine and change_batch.key_columns_of(mine[-1]).names == ("id",):
        lake = DictLake()
        parts = [Part("0", n, packet) for n, packet in enumerate(mine)]
        with suppress(TableError):  # a damaged schema may give a column another type
            resolve(
                parts, truncated_at=None, pending=None, read_rows=lake.read_rows, deletes="hard"
            )


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_key_that_the_rows_lack_stops_the_table(wrapped):
    dice = random.Random(1)
    shape = Shape(partitions=1, wrapped=wrapped, transactions=3)
    (records,) = Connector(Database(shape, dice).run(), dice).run()
    renamed = [replace(r, key=r.key and r.key.replace(b'"id"', b'"uid"')) for r in records]
    plan = StretchPlan(
        SourceIdentity("postgresql", "shop"), HandlingModes(), schemas={TABLE: table_schema()}
    )
    done = decoder.decode_range(kafka(renamed, 0, 0), plan)
    assert done.tables[TABLE].stop[0] == "no-key"
    assert done.packets == []
