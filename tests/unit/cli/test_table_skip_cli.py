"""`lakemark table skip`: what it says, what it asks, what it writes."""

import json

import pytest

from lakemark.state import tables
from tests.kit.command_line import SMALL, invoke

T = "public.orders"
TOPIC = "shop.public.orders"
ERRORED = {
    "table": T,
    "batch": 7,
    "state": "errored",
    "code": "schema-incompatible",
    "topics": [TOPIC],
    "from_offsets": {TOPIC: {"0": 10, "1": 20, "2": -2}},
}


@pytest.fixture
def errored(kafka):
    kafka.records = {T.encode(): json.dumps(ERRORED).encode()}
    kafka.ends = {(TOPIC, 0): 1510, (TOPIC, 1): 20, (TOPIC, 2): 5, ("shop.public.items", 0): 99}
    return kafka


def test_it_says_what_is_left_out_and_writes_how_far(folder, errored):
    result = invoke("table", "skip", T, "--yes")
    assert result.exit_code == 0, result.output
    assert f"{TOPIC}-0: offsets 10 to 1509 (1,500 records)" in result.output
    assert f"{TOPIC}-1: nothing, it has been read to offset 20" in result.output
    assert f"{TOPIC}-2: its first record to offset 4" in result.output
    assert "items" not in result.output
    assert "snapshotted again by itself" in result.output
    ((topic, key, value),) = errored.published
    record = json.loads(value)
    assert (topic, key, record["type"], record["table"]) == (
        "shop.control", T.encode(), "table-skip", T,
    )  # fmt: skip
    assert record["offsets"] == {TOPIC: {"0": 1510, "1": 20, "2": 5}}
    state = tables.PipelineState(tables={T: tables.TableState(state=tables.ERRORED)})
    assert tables.skip(state, T, upto=record["offsets"]), "the pipeline takes what the command says"


def test_without_a_database_it_says_what_a_snapshot_takes(folder, errored):
    plain = "\n".join(line for line in SMALL.splitlines() if not line.startswith("database"))
    (folder / "lakemark.yaml").write_text(plain)
    result = invoke("table", "skip", T, "--yes")
    assert result.exit_code == 0, result.output
    assert "set database.url" in result.output


@pytest.mark.parametrize(("answer", "sent"), [("y\n", 1), ("n\n", 0), ("\n", 0), ("", 0)])
def test_it_asks_and_no_answer_is_a_no(folder, errored, answer, sent):
    result = invoke("table", "skip", T, input=answer)
    assert len(errored.published) == sent
    assert result.exit_code == (0 if sent else 1)
    assert ("Nothing was changed" in result.output) != bool(sent)


@pytest.mark.parametrize(
    ("record", "code", "hint"),
    [
        (None, "unknown-table", "lakemark status"),
        (b"{", "progress-unreadable", "version"),
        ({}, "not-standing", "lakemark table pause"),
        ({"state": "catching-up"}, "not-standing", "is catching-up"),
        (ERRORED | {"code": "position-regressed"}, "position-regressed", "recover --new-epoch"),
    ],
)
def test_a_table_that_cannot_be_skipped_is_named(folder, kafka, record, code, hint):
    blob = record if isinstance(record, bytes) else json.dumps(record).encode()
    kafka.records = {} if record is None else {T.encode(): blob}
    result = invoke("table", "skip", T, "--yes")
    assert result.exit_code == 1
    assert f"{code}:" in result.stderr
    assert hint in result.stderr
    assert kafka.published == []
