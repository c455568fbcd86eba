"""A database server behind an address that can be moved to another one, as behind a proxy or a name."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from stack.mysql import BinlogServer, LocalBinlogServer


class MovedServer(BinlogServer):
    """An address of this machine that leads to one of several servers.

    Attributes:
        now: the server that it leads to.
    """

    def __init__(self, server: LocalBinlogServer) -> None:
        self.now = server
        self.connector = server.connector  # type: ignore[misc]
        self.statements = server.statements  # type: ignore[misc]
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((self.host, 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        self._cut()

    def switch(self, standby: LocalBinlogServer) -> None:
        """Make a replica the primary, and the primary its replica; nobody must write meanwhile.

        All connections end; new ones lead to the other server.
        """
        primary = self.now
        standby.wait_for(primary)
        standby.promote()
        primary.follow(standby)
        self.now = standby
        self._cut()

    # -- of the server that it leads to ---------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.now.is_running

    @property
    def log_place(self) -> str:
        return self.now.log_place

    def start(self) -> None:
        self.now.start()

    def stop(self) -> None:
        self.now.stop()

    def kill(self) -> None:
        self.now.kill()

    def pause(self) -> None:
        self.now.pause()

    def resume(self) -> None:
        self.now.resume()

    # -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # it is closed
            try:
                server = socket.create_connection((self.now.host, self.now.port))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    def _cut(self) -> None:
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            _shut(one)


def _carry(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):  # somebody has cut it
        while data := one.recv(1 << 16):
            other.sendall(data)
    _shut(one)
    _shut(other)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):  # it is already
        one.shutdown(socket.SHUT_RDWR)
