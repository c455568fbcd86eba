"""Whatever tables there are and however their events come: no two are written under one text."""

import json
import tempfile
from pathlib import Path
from unittest import mock

from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.model import namesakes
from lakemark.sink.names import table_path
from lakemark.sink.output import dead_letter
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker
from tests.kit.nightly import examples
from tests.kit.shop import Shop, compact, event, schema_of

PARTS = st.sampled_from(["a", "b", "a.b", "b.a", "a.a", "a.b.a", ".", "a."])
NAMES = st.tuples(PARTS, PARTS)
EVENTS = st.tuples(NAMES, st.sampled_from(["one", "two"]), st.integers(0, 1))
"""Whose event, in which topic, in which partition."""
BATCHES = st.lists(
    st.tuples(st.lists(EVENTS, max_size=5), st.sampled_from(["", "restart", "resume", "again"])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(15, nightly=150), deadline=None)
@given(BATCHES, st.booleans())
def test_no_two_tables_are_written_under_one_text(batches, known):
    names = {name for events, _ in batches for name, _, _ in events}
    schemas = {t: schema_of(t, id="int8", v="text") for t in map(namesakes.text, names)}
    topics = {"shop.one": [[], []], "shop.two": [[], []]}
    with tempfile.TemporaryDirectory() as root, mock.patch.object(dead_letter, "write"):
        shop = Shop(Path(root), Broker(topics), schemas)
        if known:
            shop.catalog.captured = captured(names)
            shop.restart()
        play(shop, batches)
        check(shop, [event for events, _ in batches for event in events], known=known)


def captured(names):
    """What the catalog says of them."""
    return {
        text: tuple(sorted(name for name in names if namesakes.text(name) == text))
        for text in map(namesakes.text, names)
        if namesakes.may_have(text)
    }


def play(shop, batches):
    at = 0
    for events, then in batches:
        for name, topic, partition in events:
            at += 1
            value = json.loads(event("c", at, {"id": at, "v": "/".join(name)}))
            value["source"] |= {"schema": name[0], "table": name[1]}
            shop.broker.put(f"shop.{topic}", partition, compact({"id": at}), compact(value))
        if then == "resume":
            shop.records += [{"type": "table-resume", "table": t} for t in shop.state.tables]
        before = {topic: dict(ends) for topic, ends in shop.read.items()}
        shop.run()
        if then == "again":  # as after a crash before Spark had committed it
            shop.read = before
            shop.restart()
            shop.again()
            shop.read = shop.broker.ends()
        if then == "restart":
            shop.restart()
    shop.run()


def check(shop, events, *, known):
    for text in map(namesakes.text, {name for name, _, _ in events}):
        came = [name for name, _, _ in events if namesakes.text(name) == text]
        rows = rows_of(shop, text)
        owners = set(rows.values())
        assert len(owners) <= 1, text
        entry = shop.state.tables[text]
        if len(set(came)) == 1:
            assert entry.state == tables.STREAMING
            assert len(rows) == len(came)
        else:
            assert (entry.state, entry.code) == (tables.ERRORED, namesakes.CODE)
            assert not (known and rows)


def rows_of(shop, text):
    path = table_path(shop.config.lake.path, text)
    if not DeltaTable.is_deltatable(path):
        return {}
    return shop.values(text)
