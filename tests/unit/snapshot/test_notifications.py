"""Notifications: Debezium's format, and numbers that can be trusted."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from lakemark.snapshot import notifications
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.signals import Rejection, read
from tests.kit.golden import samples

SCHEMA = Draft202012Validator(
    json.loads((Path(__file__).parents[3] / "schemas" / "notification.json").read_text())
)
RUN = Subject("kafka-sig-1", "shop", ("public.orders", "public.customers"))
TS = 1795266782085
HALF = Progress(chunks=2, total_chunks=4, rows=20_000, seconds=10, total_rows=40_000)
ORDERS = "public.orders"
REFUSED = Rejection("s9", "blocking", "blocking snapshots stop the log", "leave type out")
ALL = {
    "STARTED": notifications.started(RUN, ts_ms=TS),
    "IN_PROGRESS": notifications.in_progress(RUN, table=ORDERS, progress=HALF, ts_ms=TS),
    "TABLE_SCAN_COMPLETED": notifications.table_scan_completed(
        RUN, table=ORDERS, status=ScanStatus.SUCCEEDED, progress=HALF, ts_ms=TS
    ),
    "COMPLETED": notifications.completed(RUN, progress=HALF, ts_ms=TS),
    "PAUSED": notifications.paused(RUN, ts_ms=TS),
    "RESUMED": notifications.resumed(RUN, ts_ms=TS),
    "ABORTED": notifications.aborted(RUN, stopped=[ORDERS], ts_ms=TS),
    "REJECTED": notifications.rejected(REFUSED, pipeline="shop", ts_ms=TS),
}


def debeziums(kind):
    return json.loads(samples(wrapped=False)[f"notification_incremental_{kind}"].value)


@pytest.mark.parametrize("kind", ALL)
def test_each_fits_the_schema_and_names_its_signal(kind):
    found = ALL[kind]
    value = json.loads(found.value())
    SCHEMA.validate(value)
    assert value["type"] == kind
    assert value["id"] == ("s9" if kind == "REJECTED" else RUN.id)
    assert json.loads(found.key()) == {"id": value["id"]}
    assert value["timestamp"] == TS
    assert value["aggregate_type"] == "Incremental Snapshot"
    assert value["additional_data"]["connector_name"] == "shop"
    assert all(isinstance(text, str) and text for text in value["additional_data"].values())


@pytest.mark.parametrize("kind", ["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"])
def test_all_that_debezium_says_is_there_but_keys(kind):
    theirs, ours = debeziums(kind), json.loads(ALL[kind].value())
    assert list(ours) == list(theirs)
    assert ours["aggregate_type"] == theirs["aggregate_type"]
    missing = set(theirs["additional_data"]) - set(ours["additional_data"])
    assert missing <= {"last_processed_key", "maximum_key"}
    for name in ("connector_name", "data_collections", "scanned_collection", "status"):
        if name in theirs["additional_data"]:
            assert ours["additional_data"][name] == theirs["additional_data"][name]


def test_started_is_debeziums_to_the_byte():
    (record,) = [
        r
        for label, r in samples(wrapped=False).items()
        if label == "notification_incremental_STARTED"
    ]
    ours = notifications.started(RUN, ts_ms=debeziums("STARTED")["timestamp"])
    assert (ours.key(), ours.value()) == (record.key, record.value)


def test_progress_of_a_table():
    assert ALL["IN_PROGRESS"].additional_data == {
        "connector_name": "shop",
        "data_collections": "public.orders,public.customers",
        "current_collection_in_progress": "public.orders",
        "chunk_index": "2",
        "total_chunks": "4",
        "total_rows_scanned": "20000",
        "total_rows": "40000",
        "percent": "50",
        "rows_per_second": "2000",
        "eta_seconds": "10",
    }


def test_what_is_not_known_is_left_out():
    start = Progress(chunks=0, total_chunks=3, rows=0, seconds=0)
    found = notifications.in_progress(RUN, table=ORDERS, progress=start, ts_ms=TS).additional_data
    assert found["percent"] == "0"
    assert not {"total_rows", "rows_per_second", "eta_seconds"} & set(found)


@pytest.mark.parametrize(
    ("chunks", "total", "percent"),
    [(0, 0, 0), (0, 7, 0), (999, 1000, 99), (7, 7, 100), (8, 7, 100)],
)
def test_percent_is_100_only_at_the_end(chunks, total, percent):
    assert Progress(chunks, total, rows=0, seconds=1).percent() == percent


def test_eta_is_rounded_up_and_zero_at_the_end():
    assert Progress(3, 4, rows=1, seconds=10).eta_seconds() == 4
    assert Progress(4, 4, rows=1, seconds=10).eta_seconds() == 0
    assert Progress(5, 4, rows=1, seconds=10).eta_seconds() == 0
    assert Progress(0, 4, rows=0, seconds=10).eta_seconds() is None


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**12), st.floats(0, 10**9))
def test_numbers_of_any_progress_make_sense(chunks, total, rows, seconds):
    progress = Progress(chunks, total, rows, seconds)
    assert 0 <= progress.percent() <= 100
    assert (progress.percent() == 100) == (chunks >= total > 0)
    assert (progress.eta_seconds() or 0) >= 0
    value = notifications.completed(RUN, progress=progress, ts_ms=TS).value()
    SCHEMA.validate(json.loads(value))


def test_aborted_names_what_stopped_and_why():
    assert ALL["ABORTED"].additional_data == {
        "connector_name": "shop",
        "data_collections": "public.orders",
    }
    failed = notifications.aborted(
        RUN, stopped=[ORDERS], ts_ms=TS, code="table-gone", reason="it is gone", hint="create it"
    )
    assert failed.additional_data == {
        "connector_name": "shop",
        "data_collections": "public.orders",
        "code": "table-gone",
        "reason": "it is gone",
        "hint": "create it",
    }
    SCHEMA.validate(json.loads(failed.value()))
    odd = notifications.aborted(RUN, stopped=[ORDERS], ts_ms=TS, code="Not a code")
    assert not SCHEMA.is_valid(json.loads(odd.value()))


def test_a_rejection_says_what_is_wrong_and_what_to_do():
    found = ALL["REJECTED"].additional_data
    assert found == {
        "connector_name": "shop",
        "code": "blocking",
        "reason": "blocking snapshots stop the log",
        "hint": "leave type out",
    }


@given(st.none() | st.binary())
def test_any_refused_record_can_be_answered(value):
    refused = read(b"shop", value, pipeline="shop", unnamed="u")
    found = notifications.rejected(refused, pipeline="shop", ts_ms=TS)
    SCHEMA.validate(json.loads(found.value()))


@pytest.mark.parametrize("kind", ALL)
def test_what_was_written_is_read_back(kind):
    assert notifications.read(ALL[kind].value()) == ALL[kind]


def test_debeziums_are_read_too():
    found = [r.value for label, r in samples(wrapped=False).items() if "notification_inc" in label]
    assert all(notifications.read(value).id for value in found)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b'{"id": "a", "type": "STARTED", "aggregate_type": "Initial Snapshot"}',
        b'{"id": 5, "type": "STARTED", "aggregate_type": "Incremental Snapshot"}',
        b'{"id": "a", "aggregate_type": "Incremental Snapshot"}',
        b"[" * 100_000,
    ],
)
def test_other_records_are_no_notifications(value):
    assert notifications.read(value) is None


def test_what_is_not_known_in_a_notification_is_left_out():
    found = notifications.read(
        b'{"id": "a", "type": "NEW", "aggregate_type": "Incremental Snapshot", "more": [1],'
        b' "timestamp": "x", "additional_data": {"n": 5, "data_collections": "a.b,a.c"}}'
    )
    assert (found.type, found.timestamp) == ("NEW", 0)
    assert found.additional_data == {"data_collections": "a.b,a.c"}
    assert notifications.tables_of(found) == ("a.b", "a.c")
    bare = b'{"id": "a", "type": "NEW", "aggregate_type": "Incremental Snapshot"}'
    assert notifications.tables_of(notifications.read(bare)) == ()


@given(st.binary())
def test_any_record_can_be_read(value):
    assert notifications.read(value) is None
