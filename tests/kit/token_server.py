"""A server of tokens as OIDC's client credentials ask for them, over HTTPS, with a key set."""

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

CLIENT, SECRET, SCOPE, AUDIENCE = "lakemark", 'hush"é\\hush', "kafka", "brokers"


def openssl(*arguments: str, data: bytes = b"") -> bytes:
    done = subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True)
    return done.stdout


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass
class Tokens:
    """What the server knows.

    Attributes:
        folder: where its files are: `ca.pem` (it is trusted by), `jwks.json` (its keys).
        url: where it is asked.
        lasts_s: how long its tokens last.
        asked: the scopes that were asked for.
        given: how many tokens were given.
    """

    folder: Path
    url: str = ""
    lasts_s: int = 3600
    asked: list[str] = field(default_factory=list)
    given: int = 0

    def make(self) -> None:
        """Makes a key and a certificate of 127.0.0.1."""
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tokens"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(self.folder / "key.pem")),
            *("-out", str(self.folder / "ca.pem")),
        )
        text = openssl("rsa", "-in", str(self.folder / "key.pem"), "-noout", "-modulus").decode()
        modulus = int(text.strip().partition("=")[2], 16)
        key = {
            "kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "e": "AQAB",
            "n": encoded(modulus.to_bytes(256, "big")),
        }  # fmt: skip
        (self.folder / "jwks.json").write_text(json.dumps({"keys": [key]}))

    def token(self, scope: str) -> str:
        now = int(time.time())
        claims = {
            "sub": CLIENT, "aud": AUDIENCE, "iss": self.url, "scope": scope,
            "iat": now, "exp": now + self.lasts_s,
        }  # fmt: skip
        parts = [{"alg": "RS256", "kid": "one", "typ": "JWT"}, claims]
        signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        key = str(self.folder / "key.pem")
        return f"{signed}.{encoded(openssl('dgst', '-sha256', '-sign', key, data=signed.encode()))}"

    def answer(self, authorization: str, body: str) -> tuple[int, dict[str, object]]:
        """Of one request: who asks for what."""
        user, _, password = (
            base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        )
        scope = parse_qs(body).get("scope", [""])[0]
        self.asked.append(scope)
        if (user, password) != (CLIENT, SECRET):
            return HTTPStatus.UNAUTHORIZED, {"error": "invalid_client"}
        self.given += 1
        found = {"access_token": self.token(scope), "token_type": "Bearer"}
        return HTTPStatus.OK, {**found, "expires_in": self.lasts_s}


@contextmanager
def serving(folder: Path) -> Iterator[Tokens]:
    """Answers while the block runs."""
    tokens = Tokens(folder)
    tokens.make()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            status, found = tokens.answer(self.headers.get("authorization", ""), body)
            said = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tokens.url = f"https://127.0.0.1:{server.server_address[1]}/token"
    try:
        yield tokens
    finally:
        server.shutdown()
        server.server_close()
