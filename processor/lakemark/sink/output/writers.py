"""Processes that write to output topics, for all Python workers of an executor.

Each source has a producer of its own, which fences its predecessor (`output.transaction`). Spark
gives a source's next records to any Python worker; were the producers the workers' own, nearly
every batch
would make new ones: 0.1 to 0.6 s for each, where a transaction takes 5 ms. So they live in
processes beside the workers, started by the workers' daemon, and a source always goes to the same
one. Other executors have other processes; Spark prefers the same executor for a Kafka partition.

Nothing hangs on it but speed: a worker without such processes writes itself.
"""

import os
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from lakemark.errors import LakemarkError
from lakemark.settings.masking import foreign
from lakemark.sink.output import transaction
from lakemark.sink.output.output_records import Message
from lakemark.sink.output.transaction import MarkSource, OutputTarget

COUNT: Final = "LAKEMARK_OUTPUT_WRITERS"
"""Set in the environment of an executor's workers: how many such processes it has."""

_ORPHANED_S: Final = 1.0
_REFUSED_S: Final = 0.05
_key: Final = secrets.token_bytes(32)  # known to processes forked from the daemon alone
_addresses: list[str] = []
_connections: dict[str, Connection] = {}


def start(count: int) -> None:
    """Forks so many processes; each ends when this one has ended."""
    parent = os.getpid()
    for _ in range(count):
        address, (ready, told) = _address(), os.pipe()
        if not os.fork():
            threading.Thread(target=_end_with, args=[parent], daemon=True).start()
            listener = Listener(address, "AF_UNIX", backlog=64, authkey=_key)
            os.write(told, b"1")
            os.close(told)
            _serve(listener)
        os.close(told)
        if os.read(ready, 1):
            _addresses.append(address)
        os.close(ready)


def write(target: OutputTarget, source: MarkSource, upto: int, messages: Sequence[Message]) -> int:
    """Write as `transaction.write` does, in the process that has the source's producer."""
    connection = _connection(source, target) if messages else None
    if connection is None:
        return transaction.write(target, source, upto, messages)
    try:
        connection.send((target, source, upto, messages))
        found = connection.recv()
    except (OSError, EOFError):  # it has died: whatever it was at is fenced, or finds its mark
        _connections.clear()
        return transaction.write(target, source, upto, messages)
    if isinstance(found, BaseException):
        raise found
    return int(found)


def _connection(source: MarkSource, target: OutputTarget) -> Connection | None:
    if not _addresses:
        return None
    address = _addresses[crc32(transaction.lane_of(target, source).encode()) % len(_addresses)]
    if address not in _connections:
        try:
            _connections[address] = Client(address, "AF_UNIX", authkey=_key)
        except OSError:  # it has died
            return None
    return _connections[address]


def _address() -> str:
    name = f"lakemark-{os.getpid()}-{secrets.token_hex(8)}"
    if platform.system() == "Linux":
        return f"\0{name}"  # leaves no file behind
    return str(Path(tempfile.gettempdir()) / name)


def _serve(listener: Listener) -> None:
    while True:
        try:
            connection = listener.accept()
            threading.Thread(target=_answer, args=[connection], daemon=True).start()
        except Exception:  # noqa: BLE001 - whoever it was has gone, or has not the key; or no room
            time.sleep(_REFUSED_S)


def _answer(connection: Connection) -> None:
    """Requests of one worker, in turn, until it ends."""
    with suppress(OSError, EOFError):
        while True:
            request: tuple[Any, ...] = connection.recv()
            try:
                answer: Any = transaction.write(*request)
            except LakemarkError as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - it is the worker's, as if it had written
                answer = RuntimeError(f"{type(error).__name__}: {foreign(error)}")
            connection.send(answer)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_ORPHANED_S)
    os._exit(0)
