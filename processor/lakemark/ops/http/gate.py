"""The gate of the HTTP server: token, host and origin of requests, and the headers of every answer.

1. Without a token only this machine is served, under a name of this machine: a page elsewhere that
   makes its own name lead here (DNS rebinding) is refused.
2. With a token everything needs it but the probes and the page's own files, which say nothing.
3. What changes something must be `application/json` and, from a browser, of the same origin: a
   form or a script of another site cannot send that.
"""

import hmac
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakemark.settings.units import host_port, is_loopback

OPEN: Final = frozenset({"/", "/page.css", "/page.js", "/icon.svg", "/healthz", "/readyz"})
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def refused(status: int, code: str, reason: str, hint: str) -> Response:
    """Return an answer that says what happened and what to do; lakemark never repeats a request."""
    body = {"code": code, "reason": reason, "hint": hint, "retried": False}
    return Response(msgspec.json.encode(body), status, media_type="application/json")


class Gate:
    """Stands before an application."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request, or hands it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        found = self._who(scope["path"], headers)
        if found is None and scope["method"] not in {"GET", "HEAD"}:
            found = _crosses(headers)
        await (found or self._app)(scope, receive, answer)

    def _who(self, path: str, headers: Headers) -> Response | None:
        if self._token is None:
            return None if _is_ours(headers.get("host", "")) else _other_host()
        if path in OPEN:
            return None
        authorization = headers.get("authorization", "")
        # Starlette reads headers as ISO 8859-1; what was sent are the token's bytes.
        if hmac.compare_digest(
            authorization.encode("iso-8859-1"), f"Bearer {self._token}".encode()
        ):
            return None
        answer = refused(
            401,
            "no-token" if not authorization else "wrong-token",
            "this needs the token of the setting http.token",
            "send it as: Authorization: Bearer TOKEN",
        )
        answer.headers["www-authenticate"] = "Bearer"
        return answer


def _is_ours(host: str) -> bool:
    try:
        name, _ = host_port(host if host.rpartition("]")[2].count(":") else f"{host}:80")
    except ValueError:
        return False
    return is_loopback(name)


def _other_host() -> Response:
    return refused(
        421,
        "other-host",
        "without http.token only this machine is served, under its own name",
        "ask 127.0.0.1 or localhost, or set http.token",
    )


def _crosses(headers: Headers) -> Response | None:
    """Refuses what another site may have sent by a user's browser."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return refused(
            415,
            "not-json",
            f"the content type is {kind[:60] or 'missing'}, not application/json",
            "send the header Content-Type: application/json",
        )
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host", ""):
        return refused(
            403,
            "cross-site",
            "the request comes from a page of another site",
            "use the page of this pipeline, or a program that sends no Origin",
        )
    return None
