"""A run as its notifications show it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.snapshot import notifications
from lakemark.snapshot.notifications import Notification, Progress, ScanStatus, Subject
from lakemark.snapshot.run_tracker import FollowedRun, Scan, then
from lakemark.snapshot.signals import Rejection

A, B = "public.a", "public.b"
RUN = Subject("r1", "shop", (A, B))
HALF = Progress(chunks=1, total_chunks=2, rows=10, seconds=2, total_rows=20)
FULL = Progress(chunks=2, total_chunks=2, rows=20, seconds=4)
STARTED = notifications.started(RUN, ts_ms=1)
PAUSED = notifications.paused(RUN, ts_ms=1)
COMPLETED = notifications.completed(RUN, progress=FULL, ts_ms=1)
HALF_OF_A = notifications.in_progress(RUN, table=A, progress=HALF, ts_ms=1)


def scanned(table, status=ScanStatus.SUCCEEDED):
    return notifications.table_scan_completed(
        RUN, table=table, status=status, progress=FULL, ts_ms=1
    )


def stopped(*tables, **why):
    return notifications.aborted(RUN, stopped=tables, ts_ms=1, **why)


def after(*found, run=None):
    run = run or FollowedRun("r1")
    for notification in found:
        run = then(run, notification)
    return run


def test_a_run_from_its_start_to_its_end():
    run = after(STARTED)
    assert (run.state, run.tables) == ("running", {A: Scan(), B: Scan()})
    run = then(run, HALF_OF_A)
    assert run.tables[A] == Scan(
        chunks=1, total_chunks=2, rows=10, total_rows=20, rows_per_second=5, eta_seconds=2
    )
    assert then(run, PAUSED).state == "paused"
    assert after(PAUSED, HALF_OF_A, scanned(A), run=run).state == "paused"
    assert after(PAUSED, notifications.resumed(RUN, ts_ms=1), run=run).state == "running"
    run = after(scanned(A), scanned(B, ScanStatus.EMPTY), run=run)
    assert not run.has_ended
    run = then(run, COMPLETED)
    assert (run.state, run.has_ended, run.is_good) == ("completed", True, True)
    assert then(run, STARTED) is run


@pytest.mark.parametrize("status", [s for s in ScanStatus if s not in ("SUCCEEDED", "EMPTY")])
def test_a_run_that_completes_without_a_table_is_not_good(status):
    run = after(STARTED, scanned(A), scanned(B, status), COMPLETED)
    assert (run.state, run.is_good) == ("completed", False)
    assert run.unread() == {B: status.value}


def test_a_run_that_is_stopped_for_one_table_goes_on_for_the_others():
    run = after(STARTED, stopped(B))
    assert (run.state, run.unread()) == ("running", {B: "STOPPED"})
    assert after(stopped(A), run=run).state == "aborted"
    done = after(scanned(A), COMPLETED, run=run)
    assert (done.state, done.is_good) == ("completed", False)


def test_a_run_that_fails_at_once():
    run = after(stopped(A, B, code="table-gone", reason="it is gone"))
    assert (run.state, run.is_good) == ("aborted", False)


def test_a_rejected_signal():
    refused = Rejection("r1", "blocking", "no", "hint")
    run = after(notifications.rejected(refused, pipeline="shop", ts_ms=1))
    assert (run.state, run.has_ended, run.is_good) == ("rejected", True, False)


def test_other_runs_and_unknown_types_change_nothing():
    other = Notification("r2", "COMPLETED", "Incremental Snapshot", {}, 1)
    unknown = Notification("r1", "WRITTEN", "Incremental Snapshot", {"scanned_collection": "x"}, 1)
    assert after(other, unknown) == FollowedRun("r1")


names = st.sampled_from(
    [
        *("scanned_collection", "data_collections", "current_collection_in_progress", "status"),
        *("chunk_index", "total_chunks", "total_rows", "rows_per_second", "eta_seconds"),
    ]
)
kinds = st.sampled_from(["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "ABORTED", "PAUSED"])


@given(
    st.lists(
        st.builds(
            Notification,
            st.just("r1"),
            kinds | st.text(),
            st.just("Incremental Snapshot"),
            st.dictionaries(
                names | st.text(), st.sampled_from(["5", "-1", "²", "a,b"]) | st.text()
            ),
            st.integers(),
        )
    )
)
def test_any_notifications_are_followed(found):
    run = after(*found)
    assert all(scan.chunks >= 0 and scan.rows >= 0 for scan in run.tables.values())
