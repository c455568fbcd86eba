"""A Kafka broker that knows of no topic, and soon of no broker: a controller has taken it out.

A broker that hung, or that has just started, is such a one for a moment.
"""

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_METADATA, _API_VERSIONS = 3, 18
_UNKNOWN_TOPIC, _UNSUPPORTED = 3, 35
_ID = 1  # of the broker, which is the controller
_VERSIONS = {_METADATA: (0, 4), _API_VERSIONS: (0, 0)}
"""Of the requests that it answers: none with compact fields."""


def _text(text: bytes | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text


def _versions(error: int) -> bytes:
    kinds = b"".join(struct.pack(">hhh", kind, *span) for kind, span in _VERSIONS.items())
    return struct.pack(">hi", error, len(_VERSIONS)) + kinds


def _metadata(body: bytes, brokers: bytes) -> bytes:
    """Of topics that were asked for it is said that there are none; of all (-1), nothing."""
    [count], rest, topics = struct.unpack(">i", body[:4]), body[4:], b""
    for _ in range(count):
        [size] = struct.unpack(">h", rest[:2])
        name, rest = rest[2 : 2 + size], rest[2 + size :]
        topics += struct.pack(">h", _UNKNOWN_TOPIC) + _text(name) + struct.pack(">?i", False, 0)
    head = struct.pack(">i", 0) + brokers + _text(b"cluster") + struct.pack(">i", _ID)
    return head + struct.pack(">i", max(0, count)) + topics


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while head := self.rfile.read(4):
            request = self.rfile.read(*struct.unpack(">i", head))
            kind, version, number, client = struct.unpack(">hhih", request[:10])
            body = request[10 + max(0, client) :]
            if kind == _METADATA:
                answer = _metadata(body, self.server.brokers())
            else:
                answer = _versions(0 if version == 0 else _UNSUPPORTED)
            framed = struct.pack(">i", number) + answer
            self.wfile.write(struct.pack(">i", len(framed)) + framed)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True
    asked = 0

    def brokers(self) -> bytes:
        """Itself to the first question, which is every client's; then nobody."""
        self.asked += 1
        if self.asked > 1:
            return struct.pack(">i", 0)
        host, port = self.server_address
        return (
            struct.pack(">ii", 1, _ID)
            + _text(host.encode())
            + struct.pack(">i", port)
            + _text(None)
        )


@contextmanager
def empty_broker() -> Iterator[str]:
    """The address of one, for `bootstrap.servers`, while the block runs."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
