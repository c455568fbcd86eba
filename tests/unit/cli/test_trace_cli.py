"""The command that tells the story of a row: its options, what it shows, the exit codes."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakemark.cli import trace_cli
from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import RefusedError
from lakemark.model import positions
from lakemark.ops.trace import trace as tracing
from lakemark.ops.trace.facts_log import ReadSpan, Since
from lakemark.ops.trace.facts_rows import Agreement, RowInLake
from lakemark.ops.trace.trace import RowStory
from lakemark.ops.trace.traced import (
    Fate,
    MadeBy,
    Told,
    TracedChunk,
    TracedRecord,
    TracedSweep,
    TracedWindow,
)
from tests.kit.command_line import invoke

T, KEY = "public.orders", b"[1]"
AT = lsns.pack(0, 0x1927D40, 0x1927D40)
MADE = MadeBy(3, "stream", 5, 1)
EVENT = TracedRecord("shop.t", 0, 7, KEY, "u", AT, 1_700_000_000_123_456, image={"id": 1, "v": "secret"})  # fmt: skip
CHUNK = TracedChunk(
    "run", 2, 42, KEY, 1_700_000_000_000, is_row=True, lo=TracedWindow("w", AT), image={"v": "secret"}
)  # fmt: skip
STORY = RowStory(
    T,
    KEY,
    frozenset([KEY]),
    [Told(EVENT, Fate.APPLIED, MADE, is_now=True)],
    [ReadSpan("shop.t", 0, 0, 8, 0)],
    8,
    RowInLake({"id": 1, "v": "secret"}, {"op": "u", "position": AT}, 1, 5),
    {"id": 1, "v": "secret"},
    Agreement("same"),
    on_the_way=False,
    texts=("1",),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What the command asks for, and the story that it is told."""
    found: dict = {"story": STORY}

    def trace(config, table, key, *, since, at, tick):
        found.update(table=table, key=key, since=since, at=at)
        tick("shop.t", 8, 8)
        return found["story"]

    monkeypatch.setattr(tracing, "trace", trace)
    return found


def test_a_story(folder, asked):
    result = invoke("trace", T, "--key", "1")
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "public.orders [1]",
        "records of shop.t as partition:offset",
        "time                     what    where  position   what became of it",
        "2023-11-14 22:13:20.123  update  0:7    0/1927D40  applied in batch 3, version 5 ← the row of now",
        "lake, version 5: op u at 0/1927D40",
        "lake and database agree",
        "8 records of 1 partition read",
    ]
    assert (asked["table"], asked["key"].values, asked["at"]) == (T, (1,), None)
    assert asked["since"] == Since()


def test_values_are_shown_when_they_are_asked_for(folder, asked):
    asked["story"] = replace(STORY, told=[*STORY.told, Told(CHUNK, Fate.APPLIED, MADE)])
    for form in ((), ("-o", "json")):
        assert "secret" not in invoke("trace", T, "--key", "1", *form).stdout
        assert invoke("trace", T, "--key", "1", "--with-values", *form).stdout.count("secret") == 4


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize(
    "what", [EVENT, CHUNK, replace(EVENT, bad="invalid-json", op="", position=positions.LOWEST), TracedSweep("run", AT)]
)  # fmt: skip
def test_whatever_became_of_it(folder, asked, fate, what):
    told = Told(what, fate, MADE, by=EVENT, letter="shop.t-0-7")
    asked["story"] = replace(STORY, told=[told, Told(what, fate)])
    shown = invoke("trace", T, "--key", "1")
    assert shown.exit_code == 0, shown.output
    said = json.loads(invoke("trace", T, "--key", "1", "-o", "json").stdout)
    first, second = said["story"]
    assert first["fate"] == second["fate"] == fate.value
    assert (first["batch"], first["version"], first["by"]["offset"]) == (3, 5, 7)
    assert (second["batch"], second["version"], second["by"]) == (None, None, None)


@pytest.mark.parametrize(
    ("kind", "on_the_way", "code", "shown"),
    [
        ("differing", False, 1, "lake and database differ: v, w"),
        ("differing", True, 0, "newer events are on their way"),
        ("missing", False, 1, "the database has the row, the lake has not"),
        ("extra", False, 1, "lakemark verify public.orders --key '[\"1\"]'"),
        ("neither", False, 0, "neither lake nor database has the row"),
        ("unknown", False, 0, "is not known: the database is away"),
    ],
)
def test_whether_they_agree(folder, asked, kind, on_the_way, code, shown):
    columns = ("v", "w") if kind == "differing" else ()
    agreed = Agreement(kind, columns, "the database is away")
    asked["story"] = replace(STORY, agreement=agreed, on_the_way=on_the_way)
    result = invoke("trace", T, "--key", "1")
    assert result.exit_code == code
    assert shown in result.stdout


def test_other_keys_and_what_is_not_known_are_said(folder, asked):
    moved = replace(EVENT, key=b"[9]", op="d", other_key=KEY)
    asked["story"] = replace(
        STORY,
        keys=frozenset([KEY, b"[9]"]),
        told=[*STORY.told, Told(moved, Fate.WAITING)],
        notes=["shop.t-0 begins at offset 3: what Kafka no longer has is not known"],
        at=5,
        later=2,
    )
    shown = invoke("trace", T, "--key", "1", "--at", "5").stdout
    assert "public.orders [1], and [9], which its row had or has" in shown
    assert "delete of [9], moved to [1]" in shown
    assert "! shop.t-0 begins at offset 3" in shown
    assert "as of version 5; 2 things came later" in shown
    assert asked["at"] == 5


@pytest.mark.parametrize(
    ("text", "since"),
    [
        (None, Since()),
        ("4711", Since(offset=4711)),
        ("2026-11-29T10:00", Since(datetime(2026, 11, 29, 10, tzinfo=UTC))),
        ("2026-11-29T10:00+02:00", Since(datetime(2026, 11, 29, 8, tzinfo=UTC))),
    ],
)
def test_where_reading_begins(text, since):
    assert trace_cli._since(text) == since


def test_a_duration_ago():
    moment = trace_cli._since("24h").moment
    assert moment is not None
    assert timedelta() <= datetime.now(UTC) - timedelta(hours=24) - moment < timedelta(minutes=1)


@pytest.mark.parametrize("text", ["", "yesterday", "12 moons", "99999999999999d"])
def test_what_is_no_time(text):
    with pytest.raises(RefusedError, match="--since"):
        trace_cli._since(text)


@pytest.mark.parametrize("key", ["[]", "{}", '[["a"]]', "null"])
def test_what_is_no_key(folder, asked, key):
    result = invoke("trace", T, "--key", key)
    assert result.exit_code == 1
    assert "--key" in result.output
