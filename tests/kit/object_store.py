"""An object store that speaks as much of S3 as Delta tables need, in memory, over HTTP on loopback.

It can lose an answer: the request is carried out, and the client is told of an error. It is a
process of its own, because delta-rs lets no other thread of its process run while it waits.
"""

import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

SPAWN = multiprocessing.get_context("spawn")
# Where the tests say which answer is to get lost, and ask which did.
LOSE = "lose-an-answer"


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
        with urlopen(Request(f"{self.address}/{LOSE}", names.encode(), method="PUT")):
            pass

    def lost(self) -> list[str]:
        """Names of which it did."""
        with urlopen(f"{self.address}/{LOSE}") as answer:
            found: bytes = answer.read()
        return found.decode().split()


class Objects:
    """Objects by name, bucket included.

    Attributes:
        lose, lost: as `Address` says.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lose: str = ""
        self.lost: list[str] = []
        self.lock = Lock()

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


def tag(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def serving() -> Iterator[Address]:
    """A store that answers until the end of the block."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield Address(f"http://127.0.0.1:{here.recv()}")
    finally:
        process.kill()
        process.join()


def _serve(there: Connection) -> None:
    handler = type("Handler", (_Handler,), {"store": Objects()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    there.send(server.server_address[1])
    server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    store: Objects
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Nothing on the console."""

    def _asked(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query, True).items()}
        return unquote(url.path).strip("/"), asked

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_PUT(self) -> None:
        name, asked = self._asked()
        data = self._body()
        if "partNumber" in asked:
            self.store.parts[name][int(asked["partNumber"])] = data
            self._answer(200, ETag=f'"{tag(data)}"')
            return
        if name == LOSE:
            self.store.lose = data.decode()
            self._answer(200)
            return
        status = self.store.put(name, data, absent=self.headers.get("If-None-Match") == "*")
        self._answer(status, ETag=f'"{tag(data)}"')

    def do_HEAD(self) -> None:
        name, _ = self._asked()
        data = self.store.objects.get(name)
        if data is None:
            self.send_response(404)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", formatdate(0, usegmt=True))
        self.send_header("ETag", f'"{tag(data)}"')
        self.end_headers()

    def do_GET(self) -> None:
        name, asked = self._asked()
        if name == LOSE:
            self._answer(200, "\n".join(self.store.lost).encode())
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
        more = {"ETag": f'"{tag(data)}"', "Last_Modified": formatdate(0, usegmt=True)}
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
        self.store.objects.pop(name, None)
        self._answer(204)

    def do_POST(self) -> None:
        name, asked = self._asked()
        if "delete" in asked:
            for key in re.findall(r"<Key>(.*?)</Key>", self._body().decode()):
                self.store.objects.pop(f"{name}/{key}", None)
            self._answer(200, b"<DeleteResult></DeleteResult>")
            return
        self._body()
        if "uploads" in asked:  # one upload of a name at a time is enough
            self.store.parts[name] = {}
            shown = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        else:
            parts = self.store.parts.pop(name)
            data = b"".join(parts[number] for number in sorted(parts))
            self.store.put(name, data, absent=False)
            shown = f"<CompleteMultipartUploadResult><ETag>{tag(data)}</ETag></CompleteMultipartUploadResult>"
        self._answer(200, shown.encode(), Content_Type="application/xml")
