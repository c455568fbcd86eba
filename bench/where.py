"""Where the processor time of a snapshot goes, by stage: looked at from outside, by py-spy and /proc.

    with Where(processes, pid) as where:
        ...
    where.rows      # stage, CPU seconds, percent; the largest first

What a process used is the kernel's count. Of Python processes samples of their stacks, 50 a second,
say which stage that was; nothing of lakemark is changed for it. The stages of a snapshot, in order:

| stage | is |
|---|---|
| database | all of PostgreSQL's processes: it reads, and writes its log |
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.runs import tree
from stack.bench_packages import ensure_packages
from stack.processes import StackError

RATE: Final = 50
OTHER: Final = "Python, other"
# Whose frame is met first, from the outermost, says which task it is; then, within a chunk's task,
# the innermost one.
TASKS: Final = {
    "lakemark/snapshot/chunk_task.py": "chunk",
    "lakemark/snapshot/jobs.py": "chunk",
    "lakemark/reconcile/operator.py": "operator",
    "lakemark/supervisor.py": "driver",
    "lakemark/snapshots.py": "driver",
    "lakemark/snapshot/coordinator.py": "driver",
}
OF_TASKS: Final = {"merge": "write", "decode": "decode"}  # of `tasks.py`, by function
IN_A_CHUNK: Final = {
    "lakemark/sink/": "encode",
    "lakemark/snapshot/chunks.py": "encode",
    "lakemark/snapshot/readers/": "read",
}
LIBRDKAFKA: Final = "rdk:"  # its threads begin so
PRODUCING: Final = "_write (lakemark/snapshot/chunk_task.py"
JAVA: Final = {
    "Executor task": "Java, tasks",
    "C1 CompilerThre": "Java, compilers",
    "C2 CompilerThre": "Java, compilers",
}


@dataclass(slots=True)
class Where:
    """Looks at lakemark and its servers while its block runs.

    Args:
        servers: pids of the servers, by stage: they and their descendants.
        pid: lakemark's.
        file: where the samples go.

    Attributes:
        rows: what was found, once the block has ended: JSON-ready.

    Raises:
        StackError: py-spy cannot be had, or may not look at other processes.
    """

    servers: Mapping[str, int]
    pid: int
    file: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _before: dict[tuple[str, int], float] = field(default_factory=dict)
    _spy: "subprocess.Popen[str] | None" = None

    def __enter__(self) -> Self:
        """Begins to look."""
        spy = ensure_packages() / "bin" / "py-spy"
        self._spy = subprocess.Popen(
            [
                *(str(spy), "record", "--pid", str(self.pid), "--subprocesses", "--nonblocking"),
                *("--rate", str(RATE), "--duration", "unlimited"),
                *("--format", "raw", "--output", str(self.file)),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._before = self._used()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Adds up."""
        used = Counter[str]()
        for (stage, thread), seconds in self._used().items():
            used[stage] += seconds - self._before.get((stage, thread), 0.0)
        said = self._ended()
        if kind is not None:
            return
        if not self.file.exists():
            raise StackError(f"py-spy brought no samples: {said}")
        samples = stages(self.file.read_text(encoding="utf-8").splitlines())
        python = used.pop("Python", 0.0)
        for stage, count in samples.items():
            used[stage] += python * count / samples.total()
        self.rows += shares(used)

    def _ended(self) -> str:
        """The sampler is told to end: what it said."""
        if self._spy is None:
            return ""
        self._spy.send_signal(signal.SIGINT)
        try:
            return self._spy.communicate(timeout=60)[1].strip()[-300:]
        finally:
            self._spy.kill()

    def _used(self) -> dict[tuple[str, int], float]:
        """Seconds of each thread so far, with its stage; of servers by process."""
        found = {
            (stage, pid): seconds
            for stage, server in self.servers.items()
            for pid, (_, seconds) in tree(server).items()
        }
        tick = os.sysconf("SC_CLK_TCK")
        for pid in tree(self.pid):
            java = _name(Path(f"/proc/{pid}/comm")) == "java"
            for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
                try:
                    name, _, rest = (task / "stat").read_text().rpartition(")")
                except OSError:
                    continue  # it has just ended
                fields = rest.split()
                stage = of_thread(name.partition("(")[2], java=java)
                found[stage, int(task.name)] = (int(fields[11]) + int(fields[12])) / tick
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
