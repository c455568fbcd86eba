"""Clients that are many or slow: the server answers the others, and takes few files."""

import asyncio
import json
import resource
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import uvicorn

from lakemark.ops import repeats
from lakemark.ops.http.connections import AT_ONCE, Connection, Connections, most_connections
from stack.processes import wait_for

ROOT = Path(__file__).parents[3]
FILES = 256
HALF = b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "


POST = b"POST /v1/signals HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Child:
    """A server that may open `FILES` files; its log is a file."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.http_child", str(FILES)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.files()
        self.address = self.logged()[0]["address"]
        self.port = int(self.address.rpartition(":")[2])
        assert self.healthz() == 200, "what the server opens when it begins is open from here on"

    def files(self) -> dict[str, int]:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def healthz(self) -> int:
        with urllib.request.urlopen(f"{self.address}/healthz", timeout=20) as answer:
            return answer.status

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def logged(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    made = Child(tmp_path_factory.mktemp("child"))
    yield made
    made.process.kill()
    made.process.communicate()


def possible(many: int) -> int:
    """As many clients, or fewer where this process may not have so many."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return many if soft == resource.RLIM_INFINITY else min(many, soft - 200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "many"),
    [
        (b"", 400),
        (HALF, 1400),
        (HALF + b"1\r\n\r", 400),
        (POST + b"Content-Length: 9\r\n\r\n{", 400),
    ],
)
def test_half_requests_do_not_keep_others_out(child, sent, many):
    before, said = child.files()["open"], len(child.logged())
    with ExitStack() as stack:
        for at in range(possible(many)):
            client = stack.enter_context(child.connect())
            with suppress(OSError):  # it was closed for a newer one
                client.sendall(sent)
            if at % 100 == 0:
                assert child.healthz() == 200
        assert child.healthz() == 200
        assert child.files()["most"] < before + FILES // 8 + 5 * AT_ONCE
        # One that was closed for another stays open until the event loop comes round.
        wait_for(lambda: child.files()["open"] <= before + FILES // 8 + 1, 20, "them to be closed")
    assert child.healthz() == 200
    lines = child.logged()[said:]
    assert {line["event"] for line in lines} <= {"http.crowded"}
    assert len(lines) <= repeats.AT_ONCE


def test_the_limit_is_far_below_what_the_process_may_open(monkeypatch):
    for files, most in ((64, 16), (256, 32), (1024, 128), (10**6, 128), (-1, 128)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert most_connections() == most


# --- in this process, with little patience -------------------------------------------------------


async def slow(scope, receive, send):
    """Answers at once, with more than any socket takes; at /never it does not."""
    if scope["path"] == "/never":
        await asyncio.Event().wait()
    body = b"x" * (16 * 1024**2 if scope["path"] == "/much" else 2)
    while scope["method"] == "POST" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def served(most: int, patience_s: float, clients) -> None:
    """The clients' coroutine beside a server."""
    connections = Connections(most, patience_s)
    with socket.create_server(("127.0.0.1", 0)) as place:
        server = uvicorn.Server(
            uvicorn.Config(
                slow,
                http=partial(Connection, connections),
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=0,
            )
        )
        port = place.getsockname()[1]
        running = asyncio.create_task(server.serve(sockets=[place]))
        try:
            async with asyncio.timeout(30):
                await clients(lambda: asyncio.open_connection("127.0.0.1", port))
        finally:
            server.should_exit = True
            await running


REQUEST = b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
GET = REQUEST % (b"GET", b"/", 0)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether it ends, now or soon; what was sent before is read."""
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        GET[:9],
        REQUEST % (b"POST", b"/", 9) + b"{",
        GET + GET[:9],  # the second one is half a request
    ],
)
def test_a_client_is_not_waited_for_long(sent):
    async def clients(connect):
        reader, writer = await connect()
        writer.write(sent)
        assert await is_closed(reader)
        writer.close()

    asyncio.run(served(9, 0.2, clients))


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_a_client_that_does_not_read_is_not_waited_for_long(more):
    async def clients(connect):
        reader, writer = await connect()
        asked = (REQUEST % (b"GET", b"/much", 0)).replace(b"Host", more + b"Host")
        writer.write(asked)
        await reader.readexactly(9)  # it has begun
        writer.transport.pause_reading()
        other, asking = await connect()
        asking.write(GET)
        assert await is_closed(other)  # by the same patience, and it began to wait later
        writer.transport.resume_reading()
        found = 9
        try:
            while part := await reader.read(65536):
                found += len(part)
        except ConnectionError:
            pass
        assert found < 16 * 1024**2

    asyncio.run(served(9, 0.5, clients))


def test_the_one_that_was_waited_for_the_longest_goes_first():
    async def clients(connect):
        opened = [await connect() for _ in range(3)]
        opened[0][1].write(GET)  # the first one is no longer the one that has waited the longest
        await opened[0][0].readuntil(b"xx")
        _, newest = await connect()
        assert await is_closed(opened[1][0])
        for reader, writer in (opened[0], opened[2]):
            writer.write(GET)
            assert await reader.readuntil(b"xx")
        newest.close()

    asyncio.run(served(3, 60, clients))


def test_answers_under_way_go_before_the_one_that_has_just_come():
    async def clients(connect):
        busy = [await connect() for _ in range(3)]
        for _, writer in busy:
            writer.write(REQUEST % (b"GET", b"/never", 0))
            await writer.drain()
        reader, writer = await connect()
        writer.write(GET)
        assert await reader.readuntil(b"xx")
        assert await is_closed(busy[0][0])

    asyncio.run(served(3, 60, clients))
