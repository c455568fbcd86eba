"""What is known of the source: looks in, problems and the moment up to which all has come out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres.connector_settings import TRAITS
from lakemark.connectors.postgres.facts_database import NEAR, slot_seen
from lakemark.errors import DependencyError, LakemarkError
from lakemark.ops.connector_trace import last_cause
from lakemark.ops.doctor.checks_connector import Task
from lakemark.ops.source_side import (
    ConnectorSeen,
    Expected,
    SourceLook,
    SourceSide,
)

T = 1_800_000_000.0
END = 1_000_000
SETTINGS = {"slot.name": "shop", "publication.name": "shop_pub", "database.hostname": "db"}
ALL = Expected("shop", "http://c/connectors/shop", SETTINGS, 10.0, database=True, traits=TRAITS)
BARE = replace(ALL, heartbeat_s=0.0, database=False)
RUNS = ConnectorSeen("RUNNING", (Task(0, "RUNNING"),))
SLOT = slot_seen("shop", END, confirmed=END, received=END)
WELL = SourceLook(T, RUNS, SLOT, heartbeat=T - 2)
AWAY = DependencyError("Connect is away", code="connect-unavailable", hint="start it")
MISSING = LakemarkError("no such connector", code="connector-missing", hint="name it")
DB_AWAY = DependencyError("the database is away", code="database-unavailable", hint="start it")
TRACE = (
    "org.apache.kafka.connect.errors.ConnectException: Could not create\n\tat a.B.c(D.java:1)\n"
    'Caused by: org.postgresql.util.PSQLException: ERROR: replication slot "shop" does not exist\n'
    "  Where: nowhere\n\tat e.F\n\t... 8 more\n"
)


def connector(state: str, *tasks: str, trace: str = "") -> ConnectorSeen:
    return ConnectorSeen(state, tuple(Task(n, s, trace) for n, s in enumerate(tasks)))


def after(*looks: SourceLook, expected: Expected = ALL, patient: bool = True):
    side = SourceSide(expected, patient=patient)
    return [side.seen(look) for look in looks][-1]


def codes(now) -> list[str]:
    return [problem.code for problem in now.problems]


def test_before_the_first_look_nothing_is_known():
    now = SourceSide(ALL).unseen(T)
    assert (now.watched, now.proven_ms, now.problems) == (True, None, ())


def test_all_well():
    now = after(WELL)
    assert (now.connector, now.slot_active, now.slot_distance_bytes) == ("RUNNING", True, 0)
    assert (now.proven_ms, now.problems) == (T * 1000, ())
    assert now.heartbeat_ms == (T - 2) * 1000


# --- what is wrong ----------------------------------------------------------------------------

# What is found, said at the second look at the latest; whether at the first.
TROUBLE = {
    "paused": (replace(WELL, connector=connector("PAUSED", "PAUSED")), ["connector-paused"], True),
    "stopped": (replace(WELL, connector=connector("STOPPED")), ["connector-paused"], True),
    "failed": (replace(WELL, connector=connector("FAILED", "RUNNING")), ["connector-failed"], True),
    "its task failed": (
        replace(WELL, connector=connector("RUNNING", "RUNNING", "FAILED")),
        ["connector-failed"],
        True,
    ),
    "no task": (replace(WELL, connector=connector("RUNNING")), ["connector-unassigned"], False),
    "unassigned": (
        replace(WELL, connector=connector("UNASSIGNED", "UNASSIGNED")),
        ["connector-unassigned"],
        False,
    ),
    "restarting": (
        replace(WELL, connector=connector("RUNNING", "RESTARTING")),
        ["connector-unassigned"],
        False,
    ),
    "another word of Connect's": (
        replace(WELL, connector=connector("DESTROYED", "DESTROYED")),
        ["connector-unassigned"],
        False,
    ),
    "Connect away": (replace(WELL, connector=AWAY), ["connect-unavailable"], False),
    "no such connector": (replace(WELL, connector=MISSING), ["connector-missing"], True),
    "no slot": (replace(WELL, reader=slot_seen("shop", END, exists=False)), ["slot-missing"], True),
    "the slot is lost": (replace(WELL, reader=slot_seen("shop", END, lost=True)), ["slot-lost"], True),
    "nobody reads": (replace(WELL, reader=slot_seen("shop", END, active=False)), ["slot-inactive"], False),
    "stopped, and its slot dropped": (
        SourceLook(T, connector("STOPPED"), slot_seen("shop", END, exists=False)),
        ["connector-paused", "slot-missing"],
        True,
    ),
    "its silence is the connector's": (
        replace(WELL, connector=AWAY, reader=slot_seen("shop", END, active=False), heartbeat=T - 999),
        ["connect-unavailable"],
        False,
    ),
    "no heartbeats": (replace(WELL, heartbeat=T - 31), ["heartbeat-silent"], True),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLE)
def test_trouble_is_said_and_proves_nothing(name):
    look, wanted, at_once = TROUBLE[name]
    before = replace(WELL, at=T - 100, heartbeat=T - 101)
    side = SourceSide(ALL)
    side.seen(before)
    first = side.seen(look)
    assert codes(first) == (wanted if at_once else [])
    second = side.seen(replace(look, at=T + 5))
    assert codes(second) == wanted
    assert {problem.since_ms for problem in second.problems} == {T * 1000}, "since it was seen"
    assert second.proven_ms == (T - 100) * 1000, "the last moment when all was well"
    for problem in second.problems:
        assert problem.reason
        assert problem.hint
    assert codes(after(look, patient=False)) == wanted, "a command looks once"
    well = side.seen(replace(WELL, at=T + 10, heartbeat=T + 9))
    assert (well.problems, well.proven_ms) == ((), (T + 10) * 1000)


def test_a_failed_task_says_its_last_cause():
    look = replace(WELL, connector=connector("RUNNING", "FAILED", trace=TRACE))
    (problem,) = after(look).problems
    assert problem.reason == (
        'task 0 of the connector shop has FAILED (PSQLException: ERROR: replication slot "shop" '
        "does not exist)"
    )
    assert "/connectors/shop/restart?includeTasks=true" in problem.hint


def test_a_connector_without_heartbeats_is_not_missed_for_them():
    silent = replace(WELL, heartbeat=None, at=T + 999)
    assert codes(after(WELL, silent, expected=replace(ALL, heartbeat_s=0.0))) == []
    assert codes(after(WELL, silent)) == ["heartbeat-silent"]


def test_heartbeats_are_not_missed_while_kafka_cannot_be_asked():
    assert codes(after(WELL, SourceLook(T + 999, RUNS, SLOT, heartbeats_read=False))) == []


def test_a_heartbeat_that_is_rare_by_intention_is_not_missed_early():
    rare = replace(ALL, heartbeat_s=60.0)
    assert codes(after(replace(WELL, heartbeat=T - 179), expected=rare)) == []
    assert codes(after(replace(WELL, heartbeat=T - 181), expected=rare)) == ["heartbeat-silent"]


def test_a_database_that_is_away_matters_where_nothing_else_shows_life():
    away = replace(WELL, reader=DB_AWAY)
    assert codes(after(away, replace(away, at=T + 5, heartbeat=T + 4))) == []
    mute = replace(ALL, heartbeat_s=0.0)
    assert codes(after(away, replace(away, at=T + 5), expected=mute)) == ["database-unavailable"]


# --- what is proven ---------------------------------------------------------------------------


def proven(*looks: SourceLook, expected: Expected = ALL) -> float | None:
    found = after(*looks, expected=expected).proven_ms
    return None if found is None else found / 1000


def slots(at: float, end: int, received: int | None, confirmed: int = 0) -> SourceLook:
    slot = replace(SLOT, end=end, received=received, confirmed=confirmed)
    return replace(WELL, at=at, heartbeat=at, reader=slot)


def test_what_was_received_proves_the_newest_look_before_it():
    looks = [
        *(slots(T, 100, 50), slots(T + 5, 100, 100), slots(T + 10, 200, 100)),
        slots(T + 15, 300, 250),
    ]
    found = [proven(*looks[:n]) for n in range(1, 5)]
    assert found == [None, T + 5, T + 5, T + 10]
    assert after(looks[0], patient=False).proven_ms == T * 1000, "one look has nothing before it"


def test_a_connector_that_stands_still_in_the_middle_of_the_log_proves_nothing_new():
    looks = [slots(T + 5 * n, 1000 + n, 1000) for n in range(100)]  # the first is whole
    assert proven(*looks) == T


def test_without_the_right_to_see_it_a_slot_that_is_near_is_well():
    near = slots(T, NEAR + 5, None, confirmed=5)
    far = slots(T + 5, NEAR + 6, None, confirmed=5)
    assert (proven(near), proven(far), proven(near, far)) == (T, None, T)


def test_where_no_slot_can_be_seen_heartbeats_count_else_what_connect_says():
    for expected in (ALL, replace(ALL, database=False)):
        for slot in (None, DB_AWAY):
            look = replace(WELL, reader=slot, heartbeat=T - 7)
            assert proven(look, expected=expected) == T - 7
    assert proven(SourceLook(T, RUNS), expected=BARE) == T
    nothing = replace(BARE, place="")
    assert not nothing.watched
    assert proven(SourceLook(T), expected=nothing) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 60), st.booleans(), st.booleans()),
        min_size=1, max_size=40,
    )
)  # fmt: skip
def test_no_proof_is_ever_of_a_moment_whose_log_was_not_received(steps):
    """Whatever the log and its reader do: what is proven had come, and it never goes back."""
    side, end, reached, ends, before = SourceSide(ALL), 0, 0, [], 0.0
    for number, (grown, read, runs, sees) in enumerate(steps):
        at = T + 5 * number
        end += grown
        reached = max(reached, min(end, reached + read))
        ends.append((at, end))
        look = slots(at, end, reached if sees else None, confirmed=reached)
        if not runs:
            look = replace(look, connector=connector("PAUSED", "PAUSED"))
        now = side.seen(look)
        found = (now.proven_ms or 0) / 1000
        assert found >= before
        before = found
        if found and all(s for *_, s in steps):
            assert all(log <= reached for then, log in ends if then <= found)


# --- causes -----------------------------------------------------------------------------------

CAUSES = {
    TRACE: 'PSQLException: ERROR: replication slot "shop" does not exist',
    "java.net.ConnectException: Connection refused": "ConnectException: Connection refused",
    'org.postgresql.util.PSQLException: FATAL: password authentication failed for user "kim"':
        "PSQLException: FATAL: password authentication failed for user …",
    "org.postgresql.util.PSQLException: Connection to db:5432 refused.":
        "PSQLException: Connection to … refused.",
    "org.apache.kafka.common.errors.RecordTooLargeException: The message is 1048900 bytes when":
        "RecordTooLargeException: The message is … bytes when",
    'org.postgresql.util.PSQLException: ERROR: invalid input syntax for type date: "secret x"':
        "PSQLException: ERROR: invalid input syntax for type date: …",
    "org.apache.kafka.connect.errors.DataException: secret is no number": "DataException",
    "java.lang.OutOfMemoryError: Java heap space": "OutOfMemoryError: Java heap space",
    "io.debezium.DebeziumException: at PostgresOffsetContext [secret, lsn=LSN{0/1}] is gone":
        "DebeziumException: at PostgresOffsetContext … is gone",
    "io.debezium.DebeziumException: it's 'a secret b' here":
        "DebeziumException: … here",
    "io.debezium.DebeziumException: a 'torn secret": "DebeziumException",
    "": "",
    "no trace at all": "",
}  # fmt: skip


@pytest.mark.parametrize("trace", CAUSES)
def test_the_last_cause_without_values(trace):
    assert last_cause(trace, SETTINGS, TRAITS) == CAUSES[trace]
    assert "secret" not in last_cause(trace, SETTINGS, TRAITS)


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r'\""), min_size=1), st.booleans()
)
def test_what_is_quoted_is_never_shown(value, double):
    mark = '"' if double else "'"
    words = f"org.postgresql.util.PSQLException: ERROR: bad value {mark}xx{value}xx{mark} here"
    shown = last_cause(words, SETTINGS, TRAITS)
    assert shown == "PSQLException: ERROR: bad value … here"
