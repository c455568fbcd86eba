"""Commands of the pages, run by bash as they stand there; only names and addresses are a test's."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stack.java import find_java, java_command
from stack.kafka import kafka_jars
from stack.postgres import find_binaries
from stack.processes import wait_for
from tests.kit import kcat
from tests.kit.documents import ROOT, blocks

RUN_S = 900.0
# Ctrl-C counts, also where whoever began the tests ignores it, as a script's `&` does.
_INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " os.execvp(sys.argv[1], sys.argv[1:])"
)


def lines(page: str, command: str) -> str:
    """The one bash block of a page that has this command.

    Args:
        page: its path from the root.
        command: a word or more that no other block of it has.
    """
    found = [b.text for b in blocks("bash") if b.page == ROOT / page and command in b.text]
    assert len(found) == 1, f"{len(found)} blocks of {page} have {command!r}"
    return found[0]


def with_names(text: str, names: Mapping[str, str]) -> str:
    """The text with ours for theirs; each of theirs must be there."""
    for theirs, ours in names.items():
        assert theirs in text, theirs
        text = text.replace(theirs, ours)
    return text


@dataclass
class Begun:
    """Commands that run; what they say goes into files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait(self, deadline_s: float = RUN_S) -> str:
        """Return what they printed; they must end well.

        Raises:
            AssertionError: one failed.
            subprocess.TimeoutExpired: they did not end in time.
        """
        code = self.process.wait(deadline_s)
        assert code == 0, f"exit code {code}\n{self.out.read_text()}{self.err.read_text()}"
        return self.out.read_text()

    def wait_said(self, what: str, deadline_s: float = RUN_S) -> None:
        """Wait until they say this beside what they print."""

        def said() -> bool:
            assert self.process.poll() is None, self.err.read_text()
            return what in self.err.read_text()

        wait_for(said, deadline_s, what)

    def interrupt(self) -> str:
        """Ctrl-C; return what they printed."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """End them, whatever they do."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class PageShell:
    """A bash that finds lakemark, its Python, Kafka's tools, kcat and psql.

    Attributes:
        folder: an empty one, for the programs that are not on the machine, and for what is said.
        here: where commands run.
    """

    folder: Path
    here: Path
    _begun: list[Begun] = field(default_factory=list)

    def __post_init__(self) -> None:
        acls = java_command(
            "org.apache.kafka.tools.AclCommand", classpath=kafka_jars(), heap="128m"
        )
        self._program("kafka-acls.sh", acls)
        if shutil.which("kcat") is None:
            self._program("kcat", [sys.executable, "-I", kcat.__file__])
        if shutil.which("psql") is None:
            self._program("psql", [str(find_binaries() / "psql")])

    def _program(self, name: str, command: Sequence[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)

    def begin(self, text: str) -> Begun:
        """Run lines of a page without waiting for their end; the first that fails is the last."""
        number = len(self._begun)
        out, err = (self.folder / f"{number}.{end}" for end in ("out", "err"))
        path = [str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        with out.open("wb") as to, err.open("wb") as told:
            process = subprocess.Popen(
                [sys.executable, "-c", _INTERRUPTIBLE, "bash", "-e", "-o", "pipefail", "-c", text],
                cwd=self.here,
                env={
                    **os.environ,
                    "PATH": os.pathsep.join(path),
                    "JAVA_HOME": str(find_java().parents[1]),
                    "PYTHONIOENCODING": "utf-8",
                },
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=told,
                start_new_session=True,
            )
        self._begun.append(Begun(process, out, err))
        return self._begun[-1]

    def run(self, text: str) -> str:
        """Run lines of a page and return what they print; each must end well."""
        return self.begin(text).wait()

    def close(self) -> None:
        """End whatever still runs."""
        for begun in self._begun:
            begun.kill()
