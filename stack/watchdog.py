"""Ends the servers of a process that has died, however it died.

Runs as a process of its own with a pipe from its parent as standard input. Each line is `+pid
started` (watch this) or `-pid started` (it was ended properly). The pipe's end means that the
parent is gone: then everything still watched is killed, with its process group and descendants.
Standard library only: it runs as a plain script.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if there is none.

    With the pid it names a process for good: pids are used again, pairs are not. A process that
    has ended but was not waited for counts as none.
    """
    try:
        # The name is in parentheses and may hold anything; after it come state, ppid …
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def descendants(pid: int) -> list[int]:
    """Return the pids below a process, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, []))
    return found[1:]


def signal_tree(pid: int, number: int) -> None:
    """Send a signal to a process, its group (if it leads one) and its descendants.

    Descendants are sent it one by one, because PostgreSQL's backends lead groups of their own.
    """
    below = descendants(pid)
    with suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    for each in below:
        with suppress(ProcessLookupError):
            os.kill(each, number)


def watch(lines: Iterable[str]) -> None:
    """Follow the parent's lines to their end, then kill what is still watched."""
    watched: dict[str, None] = {}
    for line in lines:
        if line.startswith("+"):
            watched[line[1:].strip()] = None
        else:
            watched.pop(line[1:].strip(), None)
    for entry in watched:
        pid, _, since = entry.partition(" ")
        if started(int(pid)) == since:
            signal_tree(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    watch(sys.stdin)
