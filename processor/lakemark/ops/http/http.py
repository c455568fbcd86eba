"""The endpoints of the HTTP server.

| path | answer |
|---|---|
| `/` | the page; its files are `/page.css`, `/page.js` and `/icon.svg` |
| `/healthz` | 200 while the query runs, or this process stands by; else 503 and why |
| `/readyz` | 200 while all tables are near the source and none is errored, else 503 and why |
| `/metrics` | Prometheus's text format |
| `/v1/status` | everything the board knows (`schemas/status.json`) |
| `/v1/history` | the last hour in stretches of ten seconds |
| `/v1/wait` | 200 as soon as everything up to a place of the log is visible, else 202 in time |
| `POST /v1/signals` | 202 and the signal's id, or 400 and why it is refused |
| `POST /v1/tables/{table}/pause`, `…/resume` | 202 and the control record's id |

Errors have `code`, `reason`, `hint` and `retried`, which is always false: ask again.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from msgspec import to_builtins
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lakemark.errors import LakemarkError, RefusedError
from lakemark.ops import health, metrics
from lakemark.ops.board import Board
from lakemark.ops.http import commands
from lakemark.ops.http.commands import PAUSE, RESUME, Commands
from lakemark.ops.http.gate import Gate, refused
from lakemark.ops.http.waiting import LongPolls
from lakemark.ops.metrics import Metrics
from lakemark.ops.status import as_told
from lakemark.settings import masking

log = structlog.get_logger(__name__)

PAGE: Final = Path(__file__).parent / "page"
_KINDS: Final = {
    "/": "text/html",
    "/page.css": "text/css",
    "/page.js": "text/javascript",
    "/icon.svg": "image/svg+xml",
}
_JSON: Final = "application/json"
_COMMANDS: Final = 8  # at once; more wait for their turn


class _Name(Convertor[str]):
    """A part of a path that may hold any characters, slashes and line breaks too."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        """Return the text unchanged."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text unchanged."""
        return value


register_url_convertor("name", _Name())


class Endpoints:
    """The endpoints of one pipeline.

    Args:
        pipeline: its name.
        board: what is answered.
        numbers: the metrics.
        does: where commands go.
        waits: looks at what is visible.
        ready_lag: how far behind a table may be for `/readyz`.
        ready_proved: how old a table's proof may be for it; None = nobody asks.
    """

    def __init__(
        self,
        pipeline: str,
        board: Board,
        numbers: Metrics,
        does: Commands,
        waits: LongPolls,
        *,
        ready_lag: timedelta,
        ready_proved: timedelta | None = None,
    ) -> None:
        self._pipeline, self._board, self._metrics = pipeline, board, numbers
        self._commands, self._ready_lag = does, ready_lag
        self._waits = waits
        self._ready_proved = ready_proved
        self._at_once = CapacityLimiter(_COMMANDS)

    def routes(self) -> list[Route]:
        """Return the paths, each with its endpoint."""
        return [
            *(Route(path, _page(path)) for path in _KINDS),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
            Route("/v1/status", self.status),
            Route("/v1/history", self.history),
            Route("/v1/wait", self.wait),
            Route("/v1/signals", self.signals, methods=["POST"]),
            Route("/v1/tables/{table:name}/pause", self.pause, methods=["POST"]),
            Route("/v1/tables/{table:name}/resume", self.resume, methods=["POST"]),
        ]

    def healthz(self, _: Request) -> Response:
        """Say whether the query runs."""
        found = health.not_alive(self._board.status())
        if found is None:
            return self._json(200, {"status": "ok"})
        reason = masking.explained(to_builtins(found))
        return self._json(503, {"status": "failing", **reason})

    def readyz(self, _: Request) -> Response:
        """Say whether the tables are recent."""
        found = health.not_ready(self._board.status(), self._ready_lag, self._ready_proved)
        words = "not ready" if found else "ok"
        reasons = masking.explained(to_builtins(found))
        return self._json(503 if found else 200, {"status": words, "reasons": reasons})

    def metrics(self, _: Request) -> Response:
        """Return the metrics."""
        return Response(self._metrics.text(), headers={"content-type": metrics.CONTENT_TYPE})

    def status(self, _: Request) -> Response:
        """Return the board's state."""
        return self._json(200, as_told(self._board.status()))

    def history(self, _: Request) -> Response:
        """Return the last hour."""
        return self._json(200, self._board.history())

    async def wait(self, request: Request) -> Response:
        """Wait until everything up to a place of the log is visible in tables.

        A script of another site cannot read the answer, and must not have rows written into the
        signal table either.
        """
        if request.headers.get("sec-fetch-site", "") == "cross-site":
            hint = "use a program that sends no such header"
            return refused(403, "cross-site", "the request comes from a page of another site", hint)
        try:
            found = await self._waits.answer(request)
        except LakemarkError as error:
            return _refusal(error)
        return self._json(200 if found.visible else 202, masking.explained(to_builtins(found)))

    async def signals(self, request: Request) -> Response:
        """Write a signal; its answer is a notification, and in `/v1/status`."""
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        return await self._in_turn(lambda: self._signal(body))

    async def pause(self, request: Request) -> Response:
        """Stop a table, as `lakemark table pause` does."""
        return await self._table(PAUSE, request)

    async def resume(self, request: Request) -> Response:
        """Let a table go on, as `lakemark table resume` does."""
        return await self._table(RESUME, request)

    async def _table(self, kind: str, request: Request) -> Response:
        table = str(request.path_params["table"])
        return await self._in_turn(lambda: self._control(kind, table))

    async def _in_turn(self, act: Callable[[], dict[str, str]]) -> Response:
        """Run a command in one of a few threads; the probes have others while Kafka is slow."""
        return await run_sync(self._asked, act, limiter=self._at_once)

    def _signal(self, body: bytes) -> dict[str, str]:
        record = commands.signal_record(body, pipeline=self._pipeline, check=self._commands.check)
        self._commands.signal(record.value)
        log.info("http.signal", id=record.id)
        return {"id": record.id}

    def _control(self, kind: str, table: str) -> dict[str, str]:
        against = commands.refusal(kind, table, self._board.status())
        if against is not None:
            raise against
        made = self._commands.control(kind, table)
        log.info("http.control", type=kind, table=table)
        return {"id": made, "table": table}

    def _asked(self, act: Callable[[], dict[str, str]]) -> Response:
        try:
            return self._json(202, act())
        except LakemarkError as error:
            return _refusal(error)

    def _json(self, status: int, value: Any) -> Response:
        return Response(msgspec.json.encode(value), status, media_type=_JSON)


def app(answers: Endpoints, *, token: str | None) -> ASGIApp:
    """Return the application, behind the gate."""
    handlers = {HTTPException: _unknown, Exception: _broken}
    inner = Starlette(routes=answers.routes(), exception_handlers=handlers)
    return Gate(inner, token=token)


def _refusal(error: LakemarkError) -> Response:
    """Return the answer to a request that is refused, or that cannot be carried out now."""
    if isinstance(error, RefusedError):
        status = 404 if error.code == "unknown-table" else 400
        return refused(status, error.code, error.message, error.hint)
    return refused(503, error.code, masking.own(error.message), error.hint)


def _page(path: str) -> Callable[[Request], Response]:
    name = {"/": "index.html"}.get(path, path.lstrip("/"))
    content = (PAGE / name).read_bytes()

    def answer(_: Request) -> Response:
        return Response(content, media_type=_KINDS[path])

    return answer


async def _body(request: Request) -> bytes:
    """Return the request's body; of one that is too large, only a beginning that is too large."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > commands.MOST_BYTES:
            break
    return bytes(found)


def _unknown(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "not-found", 405: "wrong-method"}
    reason = error.detail if isinstance(error, HTTPException) else "failed"
    hint = "GET / is the page, /v1/status the state, /metrics the numbers"
    return refused(status, words.get(status, "refused"), reason, hint)


def _broken(request: Request, error: Exception) -> Response:
    log.error("http.internal_error", path=request.url.path, exc_info=error)
    hint = "this is a defect of lakemark: please report it with the log"
    return refused(500, "internal-error", type(error).__name__, hint)
