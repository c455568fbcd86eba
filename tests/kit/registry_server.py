"""A schema registry over HTTP in this process, which can be away, late, odd or strict.

It answers as Confluent's registry and Apicurio's do: `tests/integration/test_registry.py` holds the
same client against real ones.
"""

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_TRIED = re.compile(
    r"compatibility/subjects/([^/]+)/versions/latest"
    r"|/v2/groups/([^/]+/artifacts/[^/]+)/test"
    r"|/v3/groups/([^/]+/artifacts/[^/]+)/versions$"
)


@dataclass
class ScriptedRegistry:
    """What a registry knows, and how it behaves.

    Attributes:
        url: where it is.
        ids: schemas by their numbers: documents as Confluent's API has them.
        global_ids, content_ids: schemas by Apicurio's numbers: JSON.
        subjects: numbers of schemas by subject, oldest first.
        references: of Apicurio's schemas, by their path.
        login: headers that are wanted; none while it is empty.
        status: answered to everything instead; 0 for what is right.
        body: answered with a status instead.
        strict: subjects that take no other schema than they have.
        compares: whether it can be asked if a schema would be taken.
        delay_s: before each answer.
        drips: whether the answer comes byte by byte, for ever.
        asked: paths, in their order.
        headers: of the newest request.
        posted: the document of the newest request, if it brings one.
    """

    url: str = ""
    ids: dict[int, dict[str, Any]] = field(default_factory=dict)
    global_ids: dict[int, str] = field(default_factory=dict)
    content_ids: dict[int, str] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    references: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    login: dict[str, str] = field(default_factory=dict)
    status: int = 0
    body: str = "{}"
    strict: set[str] = field(default_factory=set)
    compares: bool = True
    delay_s: float = 0.0
    drips: bool = False
    asked: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    posted: dict[str, Any] = field(default_factory=dict)

    def add(self, number: int, schema: Any, **more: Any) -> str:
        """Registers a schema under a number; its text."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.ids[number] = {"schema": text, **more}
        return text

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        """Status and document, or text, of one request."""
        if self.status:
            return self.status, self.body
        if found := _TRIED.search(path):
            return self._tried(
                subject_of(found[found.lastindex or 0]), confluent="compatibility" in path
            )
        if any(self.headers.get(name.lower()) != value for name, value in self.login.items()):
            return 401, {"error_code": 401, "message": "Unauthorized"}
        for prefix, answer in (
            ("/apis/registry/v2/", self._apicurio),
            ("/apis/registry/v3/", self._apicurio),
            ("/apis/ccompat/v7/", self._compatible),
            ("/", self._compatible),
        ):
            if path.startswith(prefix):
                return answer(path.removeprefix(prefix), query)
        return 404, {}

    def _compatible(self, path: str, _: dict[str, list[str]]) -> tuple[int, Any]:
        if path == "subjects":
            return 200, sorted(self.subjects)
        if self.posted and (found := re.fullmatch(r"subjects/([^/]+)(/versions)?", path)):
            register = self._registered if found[2] else self._looked_up
            return register(unquote(found[1]))
        if found := re.fullmatch(r"schemas/ids/(\d+)", path):
            gone = {"error_code": 40403, "message": f"Schema {found[1]} not found"}
            document = self.ids.get(int(found[1]))
            return (404, gone) if document is None else (200, document)
        if found := re.fullmatch(r"subjects/([^/]+)/versions/(\w+)", path):
            numbers = self.subjects.get(subject := unquote(found[1]), [])
            at = len(numbers) if found[2] == "latest" else int(found[2])
            if not 1 <= at <= len(numbers):
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            number = numbers[at - 1]
            return 200, {"subject": subject, "version": at, "id": number, **self.ids[number]}
        return 404, "<html>nothing here</html>"

    def _tried(self, subject: str, *, confluent: bool) -> tuple[int, Any]:
        """What it says of a schema that somebody thinks of registering."""
        if not self.compares:
            return 405, {}
        told = self.posted.get("content", {}).get("content") or self.posted.get("schema")
        schema = json.loads(told) if told else self.posted
        known = [json.loads(self.ids[number]["schema"]) for number in self.subjects[subject]]
        takes = subject not in self.strict or schema in known
        if confluent:
            return 200, {"is_compatible": takes}
        refusal = {"message": "Incompatible", "causes": [{"description": "a field"}]}
        return (200, {}) if takes else (409, refusal)

    def _registered(self, subject: str) -> tuple[int, Any]:
        return 200, {"id": self._register(subject, self.posted)}

    def _looked_up(self, subject: str) -> tuple[int, Any]:
        for number in self.subjects.get(subject, []):
            if self.ids[number]["schema"] == self.posted["schema"]:
                return 200, {"subject": subject, "id": number, "version": 1, **self.ids[number]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _register(self, subject: str, document: dict[str, Any]) -> int:
        known = (number for number, other in self.ids.items() if other == document)
        number = next(known, len(self.ids) + 1)
        self.ids[number] = document
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def _apicurio(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        gone = 404, {"message": "No content", "error_code": 404, "name": "ContentNotFoundException"}
        if path in self.references:
            return 200, self.references[path]
        if found := re.fullmatch(r"ids/(global|content)Ids/(\d+)", path):
            known = self.global_ids if found[1] == "global" else self.content_ids
            text = known.get(int(found[2]))
            return gone if text is None else (200, text)
        if path == "search/artifacts":
            offset, limit = (int(query[name][0]) for name in ("offset", "limit"))
            names = sorted(self.subjects)[offset : offset + limit]
            parts = [name.rpartition("/") for name in names]
            listed = [{"id": name, **({"groupId": g} if g else {})} for g, _, name in parts]
            return 200, {"artifacts": listed, "count": len(self.subjects)}
        if found := re.fullmatch(r"groups/([^/]+/artifacts/[^/]+)(/versions/.+)?", path):
            numbers = self.subjects.get(subject_of(found[1]), [])
            return (200, self.ids[numbers[-1]]["schema"]) if numbers else gone
        return 404, {"message": "Could not find resource", "name": "NotFoundException"}


def subject_of(path: str) -> str:
    """The subject of an artifact, whose path may have a group, as lakemark names it."""
    group, _, name = path.rpartition("/artifacts/")
    return unquote(name) if group in {"", "default"} else f"{unquote(group)}/{unquote(name)}"


@contextmanager
def serving(
    *, tls: Path | None = None, client_ca: Path | None = None
) -> Iterator[ScriptedRegistry]:
    """A registry that answers while the block runs.

    Args:
        tls: folder with `key.pem` and the certificate `ca.pem`, which it shows.
        client_ca: whose certificates its clients must have.
    """
    registry = ScriptedRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            registry.posted = json.loads(self.rfile.read(size))
            self.do_GET()
            registry.posted = {}

        def do_PUT(self) -> None:
            self.do_POST()

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            registry.headers = {name.lower(): value for name, value in self.headers.items()}
            registry.asked.append(url.path)
            status, found = registry.answer(url.path, parse_qs(url.query))
            said = (found if isinstance(found, str) else json.dumps(found)).encode()
            time.sleep(registry.delay_s)
            self.send_response(status)
            kind = "text/html" if said.startswith(b"<") else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(said) + (1 << 20) * registry.drips))
            self.end_headers()
            while registry.drips:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Says nothing: a client may go away."""

    server = Server(("127.0.0.1", 0), Handler)
    scheme = "http"
    if tls is not None:
        scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "ca.pem", tls / "key.pem")
        if client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_ca)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    registry.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        registry.drips = False
        server.shutdown()
        server.server_close()


def basic(user: str, password: str) -> dict[str, str]:
    """The header that a registry wants of this user."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
