"""Where the processor time of a snapshot goes, by stage: looked at from outside, by py-spy and /proc.

    with looking(stack, process) as found:
        ...
    found       # stage, CPU seconds, percent; the largest first

What a process used is the kernel's count, its ended threads included, without processes that have
ended when it is looked at. Of Python processes samples of their stacks, 50 a second,
say which stage that was; nothing of lakemark is changed for it. The stages of a snapshot, in order:

| stage | is |
|---|---|
| database | all of its processes: it reads, and writes its log |
| read | tasks that read chunks: rows from the database, to typed columns |
| encode | the same tasks: data files, parts, keys |
| Kafka, clients | the same tasks: parts into the chunks topic, and waiting for the broker |
| Kafka, broker | the broker, of all clients |
| connector | Kafka Connect: window rows and events |
| decode | events and window rows from the change topics |
| operator | the shards: which rows of which chunk survive |
| write | rows and files into their tables |
| driver | the coordinator and the plan of each batch |
| Python, other | Spark's own workers, what nothing else names |
| Java, tasks | Spark's tasks: Kafka's records to Python, shuffles, state |
| Java, compilers | what compiles Java's byte code; a run that lasts has done with it |
| Java, other | Spark's driver, collectors of garbage |
"""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.runs import tree
from stack.bench_packages import ensure_packages
from stack.lakemark_process import LakemarkProcess
from stack.local import LocalStack
from stack.processes import StackError

RATE: Final = 50
OTHER: Final = "Python, other"
# Whose frame is met first, from the outermost, says which task it is; then, within a chunk's task,
# the innermost one.
TASKS: Final = {
    "lakemark/snapshot/chunk_task.py": "chunk",
    "lakemark/spark/jobs.py": "chunk",
    "lakemark/reconcile/operator.py": "operator",
    "lakemark/supervisor.py": "driver",
    "lakemark/snapshot/snapshots.py": "driver",
    "lakemark/snapshot/coordinator.py": "driver",
}
OF_TASKS: Final = {"merge": "write", "decode": "decode"}  # of `tasks.py`, by function
IN_A_CHUNK: Final = {
    "lakemark/sink/": "encode",
    "lakemark/snapshot/chunks.py": "encode",
    "lakemark/connectors/": "read",
}
LIBRDKAFKA: Final = "rdk:"  # its threads begin so
PRODUCING: Final = "_write (lakemark/snapshot/chunk_task.py"
JAVA: Final = {
    "Executor task": "Java, tasks",
    "C1 CompilerThre": "Java, compilers",
    "C2 CompilerThre": "Java, compilers",
}


@contextmanager
def looking(stack: LocalStack, process: LakemarkProcess) -> Iterator[list[dict[str, Any]]]:
    """Looks at lakemark and the servers of its stack while the block runs.

    Args:
        stack: the servers.
        process: lakemark.

    Yields:
        What was found, JSON-ready; empty until the block has ended.

    Raises:
        StackError: py-spy cannot be had, or may not look at other processes; lakemark is down.
    """
    if process.identity is None:
        raise StackError("lakemark does not run")
    pid = process.identity.pid
    file, found = stack.directory / "stacks.txt", list[dict[str, Any]]()
    spy = ensure_packages() / "bin" / "py-spy"
    with subprocess.Popen(
        [
            *(str(spy), "record", "--pid", str(pid), "--subprocesses", "--nonblocking"),
            *("--rate", str(RATE), "--duration", "unlimited"),
            *("--format", "raw", "--output", str(file)),
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as sampler:  # fmt: skip
        try:
            before = _used(stack, pid)
            yield found
            after = _used(stack, pid)
            sampler.send_signal(signal.SIGINT)
            said = sampler.communicate(timeout=60)[1].strip()[-300:]
        finally:
            sampler.kill()
    if not file.exists():
        raise StackError(f"py-spy brought no samples: {said}")
    used = Counter[str]()
    for (stage, one), seconds in after.items():
        used[stage] += seconds - before.get((stage, one), 0.0)
    samples = stages(file.read_text(encoding="utf-8").splitlines())
    python = used.pop("Python", 0.0)
    for stage, count in samples.items():
        used[stage] += python * count / samples.total()
    found += shares(used)


def _used(stack: LocalStack, pid: int) -> dict[tuple[str, int], float]:
    """Seconds of each thread so far, with its stage; of servers by process."""
    servers = {
        "database": stack.source_server,
        "Kafka, broker": stack.kafka,
        "connector": stack.connect,
    }
    found = {
        (stage, one): seconds
        for stage, server in servers.items()
        if server.identity is not None
        for one, (_, seconds) in tree(server.identity.pid).items()
    }
    for process, (_, whole) in tree(pid).items():
        java = _name(Path(f"/proc/{process}/comm")) == "java"
        others = "Java, other" if java else "Python"
        threads = {
            (stage, one): used
            for one, (name, used) in _threads(process).items()
            if (stage := of_thread(name, java=java)) != others
        }
        found |= threads
        found[others, process] = whole - sum(threads.values())  # those that have ended, too
    return found


def _threads(process: int) -> dict[int, tuple[str, float]]:
    """Threads of a process that have not ended: the name, and the seconds so far."""
    tick, found = os.sysconf("SC_CLK_TCK"), dict[int, tuple[str, float]]()
    for task in Path(f"/proc/{process}/task").glob("[0-9]*"):
        try:
            name, _, rest = (task / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has just ended
        fields = rest.split()
        found[int(task.name)] = name.partition("(")[2], (int(fields[11]) + int(fields[12])) / tick
    return found


def of_thread(name: str, *, java: bool) -> str:
    """The stage of a thread by its name: of Spark's JVM, or of a process of Python."""
    if java:
        return next((of for start, of in JAVA.items() if name.startswith(start)), "Java, other")
    return "Kafka, clients" if name.startswith(LIBRDKAFKA) else "Python"


def stages(lines: Iterable[str]) -> Counter[str]:
    """Samples by stage; a line is a stack, from the outermost frame on, and how often it was met."""
    found = Counter[str]()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if count.isdecimal():
            found[stage_of(stack.split(";"))] += int(count)
    return found


def stage_of(stack: Sequence[str]) -> str:
    """The stage of a Python stack."""
    for frame in stack:
        function, _, place = frame.partition(" (")
        file = place.partition(":")[0]
        if file == "lakemark/tasks.py" and function in OF_TASKS:
            return OF_TASKS[function]
        task = TASKS.get(file)
        if task == "chunk":
            return _in_a_chunk(stack)
        if task is not None:
            return task
    return OTHER


def _in_a_chunk(stack: Sequence[str]) -> str:
    for frame in reversed(stack):
        if frame.startswith(PRODUCING):
            return "Kafka, clients"
        place = frame.partition(" (")[2]
        for start, stage in IN_A_CHUNK.items():
            if place.startswith(start):
                return stage
    return "read"


def shares(used: Mapping[str, float]) -> list[dict[str, Any]]:
    """Stages with their share of all, the largest first."""
    total = sum(used.values()) or 1.0
    ordered = sorted(used.items(), key=lambda item: -item[1])
    return [
        {
            "stage": stage,
            "cpu_seconds": round(seconds, 2),
            "percent": round(100 * seconds / total, 1),
        }
        for stage, seconds in ordered
        if seconds >= 0.005
    ]


def as_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The stages, to be printed."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("stage", "CPU s", "%"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for row in rows:
        table.add_row(row["stage"], f"{row['cpu_seconds']:.2f}", str(row["percent"]))
    return table


def _name(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
