"""An object store that speaks as much of S3 as Delta tables need, in memory, over HTTP on loopback.

It can lose an answer: the request is carried out, and the client is told of an error; it can refuse
requests, let some wait for each other, and be as far away as others are. It is a process of its
own, because delta-rs lets no other thread of its process run while it waits.
"""

import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape, unescape

SPAWN = multiprocessing.get_context("spawn")
# Where the tests tell the store what to do, and ask what it has done.
CONTROL = "how-to-answer"
MEET_S = 20.0  # as long requests wait for each other


@dataclass(frozen=True)
class Address:
    """A store that runs.

    Attributes:
        address: its URL.
    """

    address: str

    @property
    def options(self) -> dict[str, str]:
        """Storage options of delta-rs that lead here."""
        return {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
        }

    def lose(self, names: str) -> None:
        """The answer to the next conditional write of a name that matches gets lost."""
        self._tell(lose=names)

    def lost(self) -> list[str]:
        """Names of which it did."""
        return [str(name) for name in self._asked("lost")]

    def refuse(self, names: str, status: int, code: str = "Refused") -> None:
        """Every request of a name that matches is answered so; none if `names` is empty."""
        self._tell(refuse=[names, status, code])

    def gather(self, names: str, count: int) -> None:
        """Writes of names that match wait until so many of them have come."""
        self._tell(gather=[names, count])

    def save(self) -> None:
        """Keeps a copy of all objects."""
        self._tell(save=True)

    def restore(self) -> None:
        """Puts the copy back."""
        self._tell(restore=True)

    def requests(self) -> list[tuple[str, str]]:
        """Method and name of all requests since this was asked last."""
        return [(method, name) for method, name in self._asked("requests")]

    def _tell(self, **what: Any) -> None:
        data = json.dumps(what).encode()
        with urlopen(Request(f"{self.address}/{CONTROL}", data, method="PUT")):
            pass

    def _asked(self, what: str) -> list[Any]:
        with urlopen(f"{self.address}/{CONTROL}?{what}=") as answer:
            found: list[Any] = json.loads(answer.read())
        return found


class Objects:
    """Objects by name, bucket included.

    Attributes:
        lose, lost, requests: as `Address` says.
        refused: names, and the status and the code to answer.
        gathered: names, and where they wait for each other.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.saved: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lose: str = ""
        self.lost: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.refused: tuple[str, int, str] = ("", 0, "")
        self.gathered: tuple[str, Barrier | None] = ("", None)
        self.lock = Lock()

    def told(self, what: dict[str, Any]) -> None:
        """Does as `Address` says."""
        with self.lock:
            self.lose = what.get("lose", self.lose)
            self.refused = tuple(what.get("refuse", self.refused))
            if "gather" in what:
                names, count = what["gather"]
                self.gathered = names, Barrier(count, timeout=MEET_S)
            if "save" in what:
                self.saved = dict(self.objects)
            if "restore" in what:
                self.objects = dict(self.saved)

    def asked(self, what: str) -> list[Any]:
        """What `Address` asks for."""
        if what == "lost":
            return self.lost
        with self.lock:
            found, self.requests = self.requests, []
        return found

    def refusal(self, method: str, name: str) -> tuple[int, str]:
        """Status and code to answer with instead of doing it; 0 to do it."""
        with self.lock:
            self.requests.append((method, name))
            names, status, code = self.refused
            gathered, barrier = self.gathered
        if names and re.search(names, name):
            return status, code
        if barrier and method == "PUT" and re.search(gathered, name):
            try:
                barrier.wait()
            except BrokenBarrierError:
                return 503, "AloneTooLong"
        return 0, ""

    def put(self, name: str, data: bytes, *, absent: bool) -> int:
        """Stores an object; the status to answer."""
        with self.lock:
            if absent and name in self.objects:
                return 412
            self.objects[name] = data
            if absent and self.lose and re.search(self.lose, name):
                self.lose = ""
                self.lost.append(name)
                return 500
        return 200

    def listed(self, bucket: str, prefix: str, delimiter: str, after: str) -> str:
        """The XML of a listing."""
        names, folders = [], set()
        for name in sorted(self.objects):
            key = name.removeprefix(f"{bucket}/")
            if not key.startswith(prefix) or key <= after:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                names.append((key, self.objects[name]))
        entries = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z"
            f'</LastModified><ETag>"{tag(data)}"</ETag><Size>{len(data)}</Size></Contents>'
            for key, data in names
        ]
        entries += [
            f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>"
            for f in sorted(folders)
        ]
        return (
            f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
            f"{''.join(entries)}</ListBucketResult>"
        )


def described(data: bytes) -> dict[str, str]:
    """What the heads of an answer say of an object."""
    return {"ETag": f'"{tag(data)}"', "Last_Modified": formatdate(0, usegmt=True)}


def tag(data: bytes) -> str:
    """The ETag of an object."""
    return md5(data, usedforsecurity=False).hexdigest()


def _xml(name: str, inner: str) -> str:
    return f"<{name}>{inner}</{name}>"


@contextmanager
def serving(*, delay_s: float = 0.0) -> Iterator[Address]:
    """A store that answers until the end of the block, each time so many seconds late."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(there, delay_s), daemon=True)
    process.start()
    try:
        yield Address(f"http://127.0.0.1:{here.recv()}")
    finally:
        process.kill()
        process.join()


def _serve(there: Connection, delay_s: float) -> None:
    handler = type("Handler", (_Handler,), {"store": Objects(), "delay_s": delay_s})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    there.send(server.server_address[1])
    server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    store: Objects
    delay_s: float
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet, and not held back between its head and its body

    def log_message(self, *arguments: object) -> None:
        """Nothing on the console."""

    def _asked(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        asked = {
            name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()
        }
        return unquote(url.path).strip("/"), asked

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        time.sleep(self.delay_s)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _is_refused(self, name: str) -> bool:
        status, code = self.store.refusal(self.command, name)
        if status:
            self._answer(status, _xml("Error", _xml("Code", code)).encode())
        return bool(status)

    def do_PUT(self) -> None:
        name, asked = self._asked()
        data = self._body()
        if name == CONTROL:
            self.store.told(json.loads(data))
            self._answer(200)
            return
        if self._is_refused(name):
            return
        if "partNumber" in asked:
            self.store.parts[name][int(asked["partNumber"])] = data
            self._answer(200, ETag=f'"{tag(data)}"')
            return
        if source := self.headers.get("x-amz-copy-source"):
            self._copy(unquote(source).strip("/"), name)
            return
        status = self.store.put(name, data, absent=self.headers.get("If-None-Match") == "*")
        self._answer(status, ETag=f'"{tag(data)}"')

    def _copy(self, source: str, name: str) -> None:
        data = self.store.objects.get(source)
        if data is None:
            self._answer(404)
            return
        self.store.put(name, data, absent=False)
        said = _xml("ETag", f'"{tag(data)}"')
        self._answer(200, _xml("CopyObjectResult", said).encode())

    def do_HEAD(self) -> None:
        name, _ = self._asked()
        if self._is_refused(name):
            return
        data = self.store.objects.get(name)
        if data is None:
            self._answer(404)
            return
        self._answer(200, data, **described(data))

    def do_GET(self) -> None:
        name, asked = self._asked()
        if name == CONTROL:
            self._answer(200, json.dumps(self.store.asked(next(iter(asked)))).encode())
            return
        if self._is_refused(name):
            return
        if "list-type" in asked:
            after = asked.get("start-after", "")
            shown = self.store.listed(
                name, asked.get("prefix", ""), asked.get("delimiter", ""), after
            )
            self._answer(200, shown.encode(), Content_Type="application/xml")
            return
        data = self.store.objects.get(name)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        more = described(data)
        asked_range = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if asked_range is None:
            self._answer(200, data, **more)
            return
        first, last = asked_range.groups()
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(len(data), int(last) + 1) if first and last else len(data)
        more["Content_Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        self._answer(206, data[begin:end], **more)

    def do_DELETE(self) -> None:
        name, _ = self._asked()
        if self._is_refused(name):
            return
        self.store.objects.pop(name, None)
        self._answer(204)

    def do_POST(self) -> None:
        name, asked = self._asked()
        body = self._body()
        if self._is_refused(name):
            return
        if "delete" in asked:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                self.store.objects.pop(f"{name}/{unescape(key)}", None)
            gone = "".join(_xml("Deleted", _xml("Key", key)) for key in keys)
            self._answer(200, _xml("DeleteResult", gone).encode())
            return
        if "uploads" in asked:  # one upload of a name at a time is enough
            self.store.parts[name] = {}
            shown = _xml("InitiateMultipartUploadResult", "<UploadId>1</UploadId>")
        else:
            parts = self.store.parts.pop(name)
            data = b"".join(parts[number] for number in sorted(parts))
            self.store.put(name, data, absent=False)
            shown = _xml("CompleteMultipartUploadResult", f"<ETag>{tag(data)}</ETag>")
        self._answer(200, shown.encode(), Content_Type="application/xml")
