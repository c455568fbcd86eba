"""The command that compares tables: the signal it writes, what it shows, the exit codes."""

import json
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable

from lakemark.cli.verify_view import _SHOWN
from lakemark.model.comparisons import ComparedChunk, UnlikeRow
from lakemark.settings.config import LakeConfig
from lakemark.sink import found_rows
from lakemark.snapshot import notifications
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.tally import VerifyTally
from tests.kit.command_line import invoke

A, B = "public.orders", "public.customers"
RUN = Subject("v1", "shop", (A, B))
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def progress(**tally: int) -> Progress:
    return Progress(2, 2, 1000, 2, total_rows=1000, tally=VerifyTally(**tally))


def answers(**tally: int) -> list[bytes]:
    """Of a run over two tables; numbers are of the first."""
    both = VerifyTally(**tally)
    scans = [(A, progress(**tally)), (B, progress())]
    return [
        notifications.started(RUN, ts_ms=1).value(),
        *(
            notifications.table_scan_completed(
                RUN, table=table, status=ScanStatus.SUCCEEDED, progress=done, ts_ms=2
            ).value()
            for table, done in scans
        ),
        notifications.completed(RUN, progress=Progress(4, 4, 2000, 2, tally=both), ts_ms=3).value(),
    ]


def kept(folder, *rows: UnlikeRow, run="v1", verify="report") -> None:
    one = ComparedChunk(run, A, 0, 7, 0, b"\x01\x02", verify, 9, 0, [*rows])
    found_rows.keep(LakeConfig(path=str(folder / "lake")), [one], query="q", at=NOW)


def verify(*arguments: str):
    return invoke("verify", A, B, "--id", "v1", *arguments)


def sent(kafka) -> dict:
    ((topic, key, value),) = kafka.published
    assert (topic, key) == ("shop.signals", b"shop")
    return json.loads(value)


def test_equal_tables(folder, kafka):
    kafka.answers = answers()
    result = verify()
    assert result.exit_code == 0
    assert sent(kafka) == {
        "id": "v1",
        "type": "verify-snapshot",
        "data": {"data-collections": [A, B]},
    }
    assert "v1: completed" in result.stdout
    assert f"{A}: 1,000 rows, as in the source" in result.stdout
    assert f"{B}: 1,000 rows, as in the source" in result.stdout


def test_every_option_is_in_the_signal(folder, kafka):
    kafka.answers = answers()
    verify(
        *("--repair", "--with-values", "--filter", "id > 5", "--chunk-rows", "9"),
        *("--parallelism", "2", "--delay", "1s", "--priority", "3", "--surrogate-key", "at"),
    )
    assert sent(kafka)["data"] == {
        "data-collections": [A, B],
        "additional-conditions": [{"data-collection": ".*", "filter": "id > 5"}],
        "repair": True, "with-values": True, "chunk-rows": 9, "parallelism": 2, "delay": "1s",
        "priority": 3, "surrogate-key": "at",
    }  # fmt: skip


ROWS = (
    UnlikeRow("[5]", "differing", ("v", "w"), '{"id":5,"v":"a"}', '{"id":5,"v":"b"}'),
    UnlikeRow("[3]", "missing", (), '{"id":3}'),
    UnlikeRow("[9]", "extra", (), "", '{"id":9}'),
)


def test_what_is_not_as_in_the_source(folder, kafka):
    kafka.answers = answers(missing=1, extra=1, differing=1, newer=2)
    kept(folder, *ROWS)
    kept(folder, UnlikeRow("[1]", "missing"), run="another")
    result = verify()
    assert result.exit_code == 1
    shown = [line.rstrip() for line in result.stdout.splitlines()]
    at = shown.index(
        f"{A}: 1,000 rows: 1 missing in the lake, 1 only in the lake, 1 different, 2 left to newer events"
    )
    assert shown[at + 1 : at + 8] == [
        "    missing    [3]",
        '        source  {"id":3}',
        "    differing  [5]  v, w",
        '        source  {"id":5,"v":"a"}',
        '        lake    {"id":5,"v":"b"}',
        "    extra      [9]",
        '        lake    {"id":9}',
    ]
    assert shown[at + 8] == f"{B}: 1,000 rows, as in the source"


def test_what_was_mended_and_what_cannot_be(folder, kafka):
    kafka.answers = answers(differing=1, duplicate=1)
    kept(
        folder,
        UnlikeRow("[1]", "duplicate"),
        UnlikeRow("[2]", "differing", ("v",)),
        verify="repair",
    )
    result = verify("--repair")
    assert result.exit_code == 1
    assert "1 different, 1 more than once in the lake; mended" in result.stdout
    assert f"lakemark table rebuild {A}" in result.stdout
    rows = found_rows.of_run(LakeConfig(path=str(folder / "lake")), "v1")
    assert [(row["kind"], row["mended"]) for row in rows] == [
        ("duplicate", False),
        ("differing", True),
    ]


def test_what_was_read_is_said(folder, kafka):
    kafka.answers = answers(sent=2, source_bytes=16_000, lake_bytes=3_000_000)
    said = "read: 2 rows of the source, 16.0 kB; 3.0 MB of the lake"
    assert said in verify().stdout
    kafka.answers = answers(sent=1000, source_bytes=5_000_000, lake_bytes=3_000_000)
    assert "read: all rows of the source, 5.0 MB;" in verify().stdout


def test_many_rows_are_counted_and_all_are_in_json(folder, kafka):
    kept(folder, *(UnlikeRow(f"[{n}]", "missing") for n in range(100, 150)))
    kafka.answers = answers(missing=50)
    result = verify()
    assert f"and {50 - _SHOWN} more" in result.stdout
    kafka.published.clear()
    kafka.answers = answers(missing=50)
    result = verify("--output", "json")
    said = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (said["id"], said["state"]) == ("v1", "completed")
    assert said["tables"][A] == {
        "status": "SUCCEEDED", "rows": 1000, "missing": 50, "extra": 0, "differing": 0,
        "duplicate": 0, "newer": 0, "left": 0, "sent": 0, "source_bytes": 0, "lake_bytes": 0,
    }  # fmt: skip
    assert len(said["found"]) == 50
    assert said["found"][0] == {
        "run": "v1", "table": A, "kind": "missing", "key": "[100]", "columns": [],
        "position": "0102", "found_at": "2026-01-02T00:00:00+00:00", "mended": False,
        "source": None, "lake": None,
    }  # fmt: skip


def test_rows_that_were_not_compared_are_no_proof(folder, kafka):
    kafka.answers = answers(left=3)
    result = verify()
    assert result.exit_code == 1
    assert "3 not compared" in result.stdout


def test_a_newer_event_is_no_fault(folder, kafka):
    kafka.answers = answers(newer=3)
    assert verify().exit_code == 0


def test_without_waiting(folder, kafka):
    kafka.answers = answers()
    result = verify("--no-wait")
    assert result.exit_code == 0
    assert "lakemark snapshot status v1" in result.stdout
    assert "as in the source" not in result.stdout


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_run_that_fails(folder, kafka, output):
    kafka.answers = [
        notifications.started(RUN, ts_ms=1).value(),
        notifications.aborted(
            RUN,
            stopped=[A, B],
            ts_ms=2,
            code="no-table",
            reason="the lake has no table",
            hint="make it",
        ).value(),
    ]
    result = verify("--output", output)
    assert result.exit_code == 1
    assert "the lake has no table" in result.stdout
    assert "make it" in result.stdout


def test_found_twice_is_one_row(folder):
    kept(folder, UnlikeRow("[1]", "missing"))
    again = ComparedChunk("v1", A, 0, 8, 0, b"\x03", "report", 9, 0, [UnlikeRow("[1]", "missing")])
    lake = LakeConfig(path=str(folder / "lake"))
    for later in (NOW, NOW.replace(day=3)):
        found_rows.keep(lake, [again], query="q", at=later)
    assert DeltaTable(found_rows.path_of(lake)).to_pyarrow_table().num_rows == 2
    assert len(found_rows.of_run(lake, "v1")) == 1
    assert found_rows.counts(lake, "v1", A) == {"missing": 1}
    assert found_rows.counts(lake, "v1", B) == {}


def test_nothing_was_ever_found(folder):
    assert found_rows.of_run(LakeConfig(path=str(folder / "lake")), "v1") == []
