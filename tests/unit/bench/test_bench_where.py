"""What a snapshot's time goes into is told by what runs."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import where
from stack.processes import wait_for

WORKER = 'process 7:"python -m lakemark.spark.daemon";main (pyspark/worker.py:3000)'
CHUNK = f"{WORKER};read.<locals>.task (lakemark/spark/jobs.py:90);run_chunk (lakemark/snapshot/chunk_task.py:120)"


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (f"{CHUNK};_rows (lakemark/snapshot/chunk_task.py:240);read_chunk (lakemark/connectors/postgres/postgres_chunks.py:9);cast (pyarrow/compute.py:1)", "read"),
        (f"{CHUNK};clock (lakemark/snapshot/chunk_task.py:230)", "read"),
        (f"{CHUNK};_filed (lakemark/snapshot/chunk_task.py:210);write (lakemark/sink/delta/chunk_files.py:9);write_table (pyarrow/parquet.py:1)", "encode"),
        (f"{CHUNK};_write (lakemark/snapshot/chunk_task.py:250);parts (lakemark/snapshot/chunks.py:9)", "encode"),
        (f"{CHUNK};_write (lakemark/snapshot/chunk_task.py:264)", "Kafka, clients"),
        (f"{WORKER};carries (lakemark/causes.py:70);decode (lakemark/tasks.py:150);decode_range (lakemark/source/decoder.py:9)", "decode"),
        (f"{WORKER};carries (lakemark/causes.py:70);merge (lakemark/tasks.py:290);apply (lakemark/sink/apply.py:9)", "write"),
        (f"{WORKER};fold_group (lakemark/reconcile/operator.py:170);fold (lakemark/reconcile/window.py:9)", "operator"),
        (f"{WORKER};read_int (pyspark/serializers.py:9)", where.OTHER),
    ],
)  # fmt: skip
def test_a_stack_belongs_to_a_stage(stack, stage):
    assert where.stage_of(stack.split(";")) == stage


def test_what_is_looked_for_is_there():
    package = Path(__file__).parents[3] / "processor"
    assert [
        name for name in [*where.TASKS, *where.IN_A_CHUNK] if not (package / name).exists()
    ] == []


def test_samples_are_counted_and_what_is_none_is_passed_over():
    lines = [f"{WORKER};read_int (pyspark/serializers.py:9) 3", "", "no count here", f"{CHUNK} 4"]
    assert where.stages(lines) == {where.OTHER: 3, "read": 4}


def test_threads_are_told_apart_by_their_names():
    names = ["Executor task l", "C2 CompilerThre", "GC Thread#0"]
    found = [where.of_thread(name, java=True) for name in names]
    assert found == ["Java, tasks", "Java, compilers", "Java, other"]
    assert where.of_thread("rdk:broker1", java=False) == "Kafka, clients"
    assert where.of_thread("python", java=False) == "Python"


def test_shares_are_of_all_and_the_largest_comes_first():
    assert where.shares({"read": 1.0, "write": 3.0, "driver": 0.0}) == [
        {"stage": "write", "cpu_seconds": 3.0, "percent": 75.0},
        {"stage": "read", "cpu_seconds": 1.0, "percent": 25.0},
    ]


@pytest.mark.slow
def test_samples_share_what_the_processes_used(tmp_path, monkeypatch):
    """The sampler is another program here: what it writes is divided as the kernel counts."""
    home, samples = tmp_path / "packages", tmp_path / "stacks.txt"
    spy = home / "bin" / "py-spy"
    spy.parent.mkdir(parents=True)
    told = f"{CHUNK} 1\n{WORKER};merge (lakemark/tasks.py:9) 3\n"
    spy.write_text(  # no shell: that cannot be told of what its parent ignores, as in the background
        f"#!{sys.executable}\n"
        "import signal, sys, pathlib\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit())\n"
        f"pathlib.Path({str(samples)!r}).write_text({told!r})\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "while True: signal.pause()\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr(where, "ensure_packages", lambda: home)
    down = SimpleNamespace(identity=None)
    stack = SimpleNamespace(directory=tmp_path, source_server=down, kafka=down, connect=down)
    busy = "import sys\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as child:
        try:
            with where.looking(stack, SimpleNamespace(identity=child)) as found:
                wait_for((tmp_path / "ready").exists, 30, "the sampler")
                begun = time.monotonic()
                wait_for(lambda: time.monotonic() - begun > 0.5, 30, "half a second of work")
        finally:
            child.kill()
    assert [row["stage"] for row in found] == ["write", "read"]
    assert [row["percent"] for row in found] == pytest.approx([75, 25], abs=1)
    assert sum(row["cpu_seconds"] for row in found) > 0.05


@pytest.mark.slow
def test_threads_that_have_ended_count(tmp_path):
    down = SimpleNamespace(identity=None)
    stack = SimpleNamespace(source_server=down, kafka=down, connect=down)
    done = tmp_path / "done"
    one = (
        "import pathlib, sys, threading, time\n"
        "def work():\n"
        "    while time.thread_time() < 0.3: pass\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        f"pathlib.Path({str(done)!r}).touch()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", one], stdin=subprocess.PIPE) as child:
        wait_for(done.exists, 30, "the end of its thread")
        assert sum(where._used(stack, child.pid).values()) >= 0.3
        child.communicate()
