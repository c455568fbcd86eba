"""`lakemark recover`: what it takes, what it refuses, what it writes."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.kafka.records import Record
from lakemark.snapshot import signal_skip
from lakemark.snapshot.runs import COMPLETED, READING, Run, TableRun, run_key
from lakemark.state.progress import is_own, key_of
from lakemark.state.stored_form import encode
from lakemark.state.tables import PipelineState, TableState
from tests.kit.command_line import invoke

ORDERS, CUSTOMERS = "public.orders", "public.customers"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--resnapshot"],
        [ORDERS],
        ["--new-epoch", ORDERS],
        ["--new-epoch", "--resnapshot", ORDERS],
        ["--skip-signal", "r1", ORDERS],
        ["--skip-signal", "r1", "--control"],
    ],
)
def test_recover_says_what_it_needs_to_be_told(folder, kafka, arguments):
    result = invoke("recover", *arguments)
    assert result.exit_code == 2
    assert "--new-epoch" in result.output
    assert "--resnapshot TABLE" in result.output
    assert "--control" in result.output
    for two in (["--new-epoch", "--resnapshot", "public.orders"], ["--new-epoch", "--control"]):
        assert invoke("recover", *two).exit_code == 2
    assert kafka.published == []


@pytest.mark.parametrize(
    "arguments",
    [["--resnapshot", ORDERS, CUSTOMERS, ORDERS], [CUSTOMERS, ORDERS, "--resnapshot"]],
)
def test_recover_resnapshot_takes_tables(folder, kafka, arguments):
    kafka.records = {ORDERS.encode(): b"{}", CUSTOMERS.encode(): b"{}"}
    result = invoke("recover", *arguments)
    assert result.exit_code == 0
    told = [(key.decode(), json.loads(value)) for _, key, value in kafka.published]
    assert [(key, record["type"], record["table"]) for key, record in told] == [
        (table, "table-resnapshot", table) for table in (CUSTOMERS, ORDERS)
    ]
    assert f"lakemark snapshot start {CUSTOMERS} {ORDERS}" in result.output


def test_recover_resnapshot_of_a_table_that_is_not_ours_writes_nothing(folder, kafka):
    result = invoke("recover", "--resnapshot", ORDERS, "public.zebras")
    assert result.exit_code == 3
    assert "public.zebras is not among source.tables" in result.output
    assert kafka.published == []


def test_recover_resnapshot_takes_all_tables_or_none(folder, kafka):
    kafka.records = {ORDERS.encode(): b"{}"}
    result = invoke("recover", "--resnapshot", ORDERS, CUSTOMERS)
    assert result.exit_code == 1
    assert f"has not seen {CUSTOMERS}" in result.output
    assert kafka.published == []


def test_recover_resnapshot_asks_the_checkpoint_where_the_progress_topic_is_new(folder, kafka):
    states = folder / "checkpoint" / "lakemark" / "state"
    states.mkdir(parents=True)
    state = PipelineState(batch=3, tables={ORDERS: TableState()})
    (states / "3.json").write_bytes(encode(state))
    assert invoke("recover", "--resnapshot", ORDERS).exit_code == 0
    assert len(kafka.published) == 1
    assert invoke("recover", "--resnapshot", CUSTOMERS).exit_code == 1


# -- signals ------------------------------------------------------------------------------------


def kept_run(name, state):
    return {run_key(name): msgspec.json.encode(Run(name, [TableRun(ORDERS)], state=state))}


@pytest.fixture
def signals(kafka):
    """Three signals, the first of which has been dealt with; two runs, of which one is over."""
    values = [b'{"id":"old"}', b'{"id":"bad.\\u001b","type":"x"}', b"{"]
    kafka.signals = [Record(b"shop", v, (), None, 0, n) for n, v in enumerate(values)]
    kafka.records = {
        b"_signals": b'{"0":1}', **kept_run("going", READING), **kept_run("over", COMPLETED),
    }  # fmt: skip
    kafka.partitions["shop.progress"] = 1
    return kafka


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("bad.\x1b", "a signal that waits"),
        ("shop.signals-0-2", "a signal that waits"),
        ("going", "a run that goes on"),
    ],
)
def test_recover_skip_signal_leaves_a_record_for_the_next_start(folder, signals, name, what):
    result = invoke("recover", "--skip-signal", name)
    assert result.exit_code == 0, result.output
    assert what in result.output
    ((topic, key, _),) = signals.published
    assert topic == "shop.progress"
    assert is_own(key)
    assert signal_skip.names_in([key]) == {name}


def test_of_several_connectors_those_leave_a_signal_out_that_have_not_dealt_with_it(
    folder, signals
):
    signals.records = {
        key_of("shop", b"_signals"): b'{"0":1}',
        key_of("crm", b"_signals"): b'{"0":3}',
        **{key_of("crm", key): value for key, value in kept_run("going@crm", READING).items()},
    }
    for name, connector in (("shop.signals-0-2", "shop"), ("going@crm", "crm")):
        assert invoke("recover", "--skip-signal", name).exit_code == 0
        ((_, key, _),) = signals.published
        assert key == key_of(connector, signal_skip.key_of(name))
        signals.published.clear()


@pytest.mark.parametrize("name", ["old", "over", "goin", "", "\udcff", "nothing" * 99])
def test_recover_skip_signal_of_an_unknown_id_is_an_error(folder, signals, name):
    result = invoke("recover", "--skip-signal", name)
    assert result.exit_code == 1
    assert "has the id" in result.output
    assert ("did you mean going?" in result.output) == (name == "goin")
    assert signals.published == []


@given(st.text())
def test_any_id_is_found_again(name):
    key = signal_skip.key_of(name)
    assert is_own(key)
    assert signal_skip.names_in([b"_signals", key, b"_skip:x", b"public.a"]) == {name}


def test_recover_new_epoch_writes_one_record(folder, kafka):
    assert invoke("recover", "--new-epoch").exit_code == 0
    ((_, _, value),) = kafka.published
    assert json.loads(value)["type"] == "new-epoch"


def test_recover_shows_its_tables_in_the_help():
    assert "[TABLE]..." in invoke("recover", "--help").output


# --- jars -------------------------------------------------------------------------------------
