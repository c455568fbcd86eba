"""Two lakemarks on one checkpoint: whatever happens, the tables stay right."""

import pytest

from stack import every_type, shop
from stack.lakemark_process import LakemarkProcess
from stack.local import Database
from stack.processes import StackError, wait_for
from stack.workload import Workload
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]


def overlap(first: LakemarkProcess, second: LakemarkProcess) -> None:
    """Let both work on the same load for some batches, or until one of them gives up."""

    def batches() -> int:
        return sum(len(run.events("batch.done")) for run in (first, second))

    enough = batches() + 4
    wait_for(
        lambda: batches() >= enough or not (first.is_running and second.is_running),
        STATE_S,
        "four more batches of both",
    )


def test_a_second_run_on_the_same_checkpoint_does_no_harm(database: Database, tmp_path):
    with database.connect() as connection:
        shop.create(connection, every=every_type.Limits.of({}))
        shop.fill(connection, scale=0.02)
    database.start_connector()
    with Running(database, tmp_path) as running:
        running.lakemark.start()
        running.lakemark.wait_for_batch(STATE_S)
        second = LakemarkProcess(running.lakemark.config, log=tmp_path / "second.log")
        try:
            with Workload(database.dsn, writers=2, rows_per_s=300) as workload:
                try:
                    second.start()
                except StackError:
                    assert running.lakemark.is_running, "the first one must not give way"
                overlap(running.lakemark, second)
                workload.stop()
            running.wait_drained()
            survivor = running.lakemark if running.lakemark.is_running else second
            assert survivor.is_running, "one of them has to go on"
            running.comparer().wait_until_equal(survivor, deadline_s=STATE_S * 2)
        finally:
            second.kill()
        running.lakemark.stop()
        # What they left behind is a checkpoint that goes on.
        Workload(database.dsn, writers=2, seed=2).run_for(2)
        running.wait_drained()
        running.equal_after_once()
