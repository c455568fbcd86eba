"""What the supervisor makes of failures."""

import io
import json
from contextlib import nullcontext

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.util import handle_worker_exception

from lakemark import causes
from lakemark.causes import cause, root_cause
from lakemark.connectors import connector
from lakemark.errors import ConfigError, DependencyError, PipelineError, StateVersionError
from lakemark.kafka import brokers
from lakemark.ops import settings_record
from lakemark.runners.trigger import Trigger
from lakemark.settings.config import load
from lakemark.settings.layers import LoginRefused, Mistake
from lakemark.state import recovery, tables
from lakemark.state.progress import Kept
from lakemark.state.tables import CATCHING_UP, PAUSED, LeftOut, PipelineState, TableState
from lakemark.state.takeover import StoppedError
from lakemark.supervisor import Supervisor
from tests.kit.command_line import invoke
from tests.kit.table_states import table_state

REFUSED = LoginRefused(
    Mistake("database", "the database refuses us", "check it"), code="database-refused"
)
JAVA = """An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.Foo
Caused by: java.io.IOException: disk
\tat x
Caused by: org.apache.kafka.common.errors.TimeoutException: no broker
"""


def test_the_root_cause_of_a_java_trace_is_its_last_cause():
    assert root_cause(JAVA) == "org.apache.kafka.common.errors.TimeoutException: no broker"


def test_our_own_error_in_a_workers_trace_goes_first():
    text = (
        JAVA + "\nTraceback\n  lakemark.errors.DependencyError: dead letters could not be written"
    )
    assert root_cause(text).endswith("dead letters could not be written")


# What Spark says of a shard's state that a worker refused, with fewer lines of Python and Java.
REFUSED_STATE = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function \
in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback
  File "/venv/lib/pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/lakemark/reconcile/window.py", line 105, in fold
    now = decode_state(state)
          ^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/lakemark/reconcile/state.py", line 105, in decode_state
    raise StateVersionError(
lakemark.errors.StateVersionError: the checkpoint's reconcile state has version 4, this lakemark \
reads version 3: it was written by a newer one
lakemark.error {"kind": "StateVersionError", "message": "the checkpoint's reconcile state has \
version 4, this lakemark reads version 3: it was written by a newer one", "code": "state-version", \
"hint": "run the version of lakemark that wrote the checkpoint, or a newer one", "retried": false}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Caused by: org.apache.spark.SparkException: Job aborted
"""


def test_a_state_of_another_version_ends_the_run_and_is_not_tried_again(folder, monkeypatch):
    """A query whose worker refuses the state, up to what `lakemark run` shows."""
    said = []

    class Query:
        isActive = False  # noqa: N815 (Spark's)
        id = "q"

        def awaitTermination(self, _):  # noqa: N802
            raise StreamingQueryException(REFUSED_STATE)

    class Batches:
        failure = RuntimeError(REFUSED_STATE)
        pace = Trigger()

        class runner:  # noqa: N801
            errors = (StreamingQueryException,)

        class checkpoint:  # noqa: N801
            check_owner = staticmethod(lambda: None)

        def start(self, **_):
            return Query()

    def started(config, *, once):
        supervisor = Supervisor(config, once=once)
        monkeypatch.setattr(supervisor, "_publish_pipeline", lambda *told: said.append(told))
        monkeypatch.setattr(supervisor, "_stream", lambda spark: supervisor._queries(Batches()))
        monkeypatch.setattr(supervisor.stopping, "wait", lambda _: supervisor.stopping.set())
        monkeypatch.setattr(recovery, "still_there", lambda *_: set())
        return supervisor._supervise(None)

    monkeypatch.setattr("lakemark.supervisor.run", started)
    result = invoke("run")
    assert result.exit_code == 1
    said_by_the_worker = (
        "\nthe checkpoint's reconcile state has version 4, this lakemark reads version 3: it was"
        " written by a newer one\n"
    )
    for words in (
        "state-version:",
        said_by_the_worker,
        "→ run the version of lakemark that wrote the checkpoint",
    ):
        assert words in result.output
    assert "tries again" not in result.output
    assert said == [("streaming",)]  # and never degraded


def test_a_text_without_causes_says_its_first_line():
    assert root_cause("\n boom \n") == "boom"
    assert root_cause("") == "unknown"


def trace_of(error):
    """What a Python worker of Spark hands on of an error in a stage of ours."""

    @causes.carrying
    def stage():
        yield
        raise error

    told = io.BytesIO()
    try:
        list(stage())
    except type(error) as failed:
        handle_worker_exception(failed, told)
    return told.getvalue()[8:].decode()


def spark_says(trace):
    return RuntimeError(
        JAVA + "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent"
        f" call last):\n{trace}\n\tat org.apache.spark.api.python.BasePythonRunner\n" + trace
    )


AWAY = DependencyError(
    'the topic "clean.public.a" takes nothing:\n  no answer', code="output-unavailable", hint="start it"
)  # fmt: skip


def test_an_error_in_a_worker_keeps_its_code_and_its_hint():
    found = cause(None, spark_says(trace_of(AWAY)))
    assert (type(found), found.code, found.message, found.hint, found.retried) == (
        DependencyError,
        "output-unavailable",
        AWAY.message,
        "start it",
        True,
    )


def test_an_error_in_a_worker_that_is_final_stays_so():
    newer = StateVersionError("version 9, this one reads up to 1", hint="run the newer one")
    found = cause(spark_says(trace_of(newer)), RuntimeError("the batch failed"))
    assert (type(found), found.code, found.hint, found.retried) == (
        StateVersionError,
        "state-version",
        "run the newer one",
        False,
    )


def test_an_error_of_others_in_a_worker_is_a_query_that_failed():
    found = cause(None, RuntimeError(trace_of(ValueError("no such thing"))))
    assert (found.code, found.retried) == ("query-failed", True)


def test_brokers_that_do_not_answer_sparks_client_have_the_same_name_as_for_ours():
    found = cause(None, RuntimeError(JAVA))
    assert (found.code, found.retried) == ("kafka-unavailable", True)
    assert "no broker" in found.message
    assert "start the brokers" in found.hint


def test_any_state():
    state = PipelineState(tables={"a": TableState(), "b": TableState(state=CATCHING_UP)})
    assert tables.any_state(state, CATCHING_UP)
    assert not tables.any_state(PipelineState(), CATCHING_UP)


@pytest.mark.parametrize("once", [True, False])
def test_a_skip_on_its_way_needs_a_batch_where_the_source_is_silent(folder, once):
    supervisor = Supervisor(load(folder / "lakemark.yaml"), once=once)
    supervisor.state = PipelineState(tables={"a": TableState(state=PAUSED)})
    assert not supervisor._needs_batch()
    supervisor.state.tables["a"].progress.skip_to = {"t": {0: 9}}
    assert supervisor._needs_batch()


def supervised(supervisor, monkeypatch, streamed):
    """What becomes of a supervisor whose database refuses it, before or after its first stream."""
    said = []

    def stream(_spark):
        if said:
            raise StoppedError
        supervisor.streamed = streamed
        raise REFUSED

    monkeypatch.setattr(supervisor, "_stream", stream)
    monkeypatch.setattr(supervisor, "_publish_pipeline", lambda *told: said.append(told))
    monkeypatch.setattr(supervisor.stopping, "wait", lambda _: None)
    assert supervisor._supervise(None) == 0
    return said


def test_a_refusal_ends_a_start_and_degrades_what_has_streamed(folder, monkeypatch):
    supervisor = Supervisor(load(folder / "lakemark.yaml"), once=False)
    with pytest.raises(ConfigError):
        supervised(supervisor, monkeypatch, streamed=False)
    ((state, error),) = supervised(supervisor, monkeypatch, streamed=True)
    assert (state, error.code, error.retried) == ("degraded", "database-refused", True)


@pytest.mark.parametrize("once", [True, False])
def test_a_run_that_ends_by_itself_says_that_a_connector_was_not_read(folder, once):
    supervisor = Supervisor(load(folder / "lakemark.yaml"), once=once)
    assert supervisor._verdict() == 0
    supervisor.connecting.away["crm"] = DependencyError("no", code="database-unavailable")
    assert supervisor._verdict() == int(once)


@pytest.mark.parametrize("error", [None, ConfigError("it is wrong", hint="mend it")])
def test_a_process_that_ends_says_so_and_why(folder, monkeypatch, error):
    supervisor, said = Supervisor(load(folder / "lakemark.yaml"), once=True), {}

    def supervise(_spark):
        supervisor.stands_by = False
        if error:
            raise error
        return 0

    monkeypatch.setattr(supervisor.stop, "on_signals", lambda: None)
    monkeypatch.setattr(supervisor, "turn", nullcontext())
    monkeypatch.setattr("lakemark.spark.spark_runner.spark_runner", lambda *_: nullcontext())
    monkeypatch.setattr(supervisor, "_supervise", supervise)
    monkeypatch.setattr(supervisor, "_say", said.update)
    with pytest.raises(ConfigError) if error else nullcontext():
        supervisor.run()
    told = json.loads(said[b"_pipeline"])
    assert (told["state"], told["reason"], told["hint"]) == (
        "stopped", "it is wrong" if error else "", "mend it" if error else "",
    )  # fmt: skip


def test_who_cannot_even_begin_says_nothing_in_the_place_of_the_owner(folder, monkeypatch):
    supervisor, said = Supervisor(load(folder / "lakemark.yaml"), once=False), []
    away = DependencyError("it does not answer", code="checkpoint-unavailable")

    def stream(_spark):
        supervisor.stopping.set()
        raise away

    monkeypatch.setattr(supervisor, "_stream", stream)
    monkeypatch.setattr(supervisor, "_say", said.extend)
    assert supervisor._supervise(None) == 0
    assert said == []
    pipeline = supervisor.board.status().pipeline
    assert (pipeline.state, pipeline.code) == ("degraded", "checkpoint-unavailable")


def test_a_table_of_which_there_is_nothing_new_is_not_said_again(folder, monkeypatch):
    supervisor, said = Supervisor(load(folder / "lakemark.yaml"), once=False), []
    monkeypatch.setattr(supervisor, "_say", said.extend)
    state = PipelineState(batch=1, tables={"a": TableState(), "b": table_state(events=1)})
    supervisor._publish(state)
    assert [key for key, _ in said] == [b"a", b"b"]
    said.clear()
    state.batch, state.tables["b"].size.events = 2, 2
    supervisor._publish(state)
    assert [key for key, _ in said] == [b"b"]
    record = json.loads(said[0][1])
    assert (record["table"], record["batch"], record["events"]) == ("b", 2, 2)
    said.clear()
    state.batch, state.left["a"] = 3, LeftOut(state.tables.pop("a"))
    supervisor._publish(state)
    supervisor._publish(state)
    assert said == [(b"a", None)]


def test_only_a_process_whose_query_runs_says_with_which_settings_and_for_which_tables(
    folder, monkeypatch
):
    supervisor, said = Supervisor(load(folder / "lakemark.yaml"), once=False), {}
    monkeypatch.setattr(supervisor, "_say", said.update)
    supervisor.stands_by = False
    supervisor._publish_pipeline("standby")
    supervisor._publish_pipeline("degraded")
    assert said.keys() == {b"_pipeline"}
    supervisor.captured = ("public.a", "public.b")
    supervisor._publish_pipeline("streaming")
    assert Kept({}, said).captured() == ("public.a", "public.b")
    record = settings_record.decode(said[settings_record.KEY])
    assert record is not None
    assert record.settings["name"] == "shop"
    assert b"hush-4hush" not in said[settings_record.KEY]


def test_the_connector_is_read_when_the_turn_has_come(folder, monkeypatch):
    """A standby may have waited for weeks: what the connector said at its start is of no use."""
    done = []

    class Brokers:
        def __init__(self, config):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ensure_topics(self):
            done.append("topics")

    class Nothing:
        def newest(self):
            return PipelineState()

    def read(config, **_):
        done.append("connector")
        raise DependencyError("away")

    supervisor = Supervisor(load(folder / "lakemark.yaml"), once=False)
    monkeypatch.setattr(brokers, "Cluster", Brokers)
    monkeypatch.setattr(supervisor, "_checkpoint", lambda spark: done.append("turn") or Nothing())
    monkeypatch.setattr(connector, "read", read)
    with pytest.raises(DependencyError):
        supervisor._pipeline(None)
    assert done == ["topics", "turn", "connector"]


MISSED = [
    RuntimeError("a file of the state store is missing"),
    PipelineError("it has no offsets of batch 3", code="checkpoint-damaged"),
]


@pytest.mark.parametrize("missed", MISSED, ids=["by Spark", "by us"])
@pytest.mark.parametrize("kind", [DependencyError, PipelineError])
def test_whose_checkpoint_it_is_comes_before_what_is_missed_of_it(folder, kind, missed):
    """Somebody took it over, or it was removed: then files are missing."""

    class Batches:
        failure = missed

        class checkpoint:  # noqa: N801
            @staticmethod
            def check_owner():
                raise kind("why", code="checkpoint-lost")

    found = Supervisor(load(folder / "lakemark.yaml"), once=False)._cause(Batches(), Exception("x"))
    assert (type(found), found.code, found.retried) == (kind, "checkpoint-lost", kind.retried)
