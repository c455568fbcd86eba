"""Proof of who we are for a schema registry: tokens, and TLS."""

import ssl
import threading
import time
from typing import Any, Final

import httpx

from lakemark.converters.avro.registry_settings import RegistrySettings, TlsFiles
from lakemark.errors import DependencyError
from lakemark.settings.masking import foreign

REFUSED: Final = "registry-refused"
_FRESH: Final = 0.8  # of a token's life; the rest is for clocks that differ


class Tokens:
    """Bearer tokens: one that was given, or those that a client gets by its credentials.

    Args:
        settings: of the registry; its login has a token or an endpoint.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._token, self._ends = settings.login.token, float("inf")
        if not self._token:
            self._ends = 0.0

    def token(self) -> str:
        """Return a token that has not expired.

        Raises:
            DependencyError: the endpoint gives none, or does not answer.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._ends:
                answer = self._asked()
                self._token = str(answer["access_token"])
                self._ends = now + float(answer.get("expires_in", 60)) * _FRESH
            return self._token

    def fields(self, _: object = None) -> dict[str, str]:
        """Return a token and what goes with it, as confluent-kafka's client wants it."""
        more = dict(self._settings.login.headers)
        found = {
            "bearer.auth.token": self.token(),
            "bearer.auth.logical.cluster": more.get("target-sr-cluster", ""),
        }
        pool = more.get("Confluent-Identity-Pool-Id")
        return {**found, "bearer.auth.identity.pool.id": pool} if pool else found

    def signed(self, request: httpx.Request) -> httpx.Request:
        """Put a token into a request."""
        request.headers["Authorization"] = f"Bearer {self.token()}"
        request.headers.update(dict(self._settings.login.headers))
        return request

    def _asked(self) -> dict[str, Any]:
        login, endpoint = self._settings.login, self._settings.login.endpoint
        form = {
            "grant_type": "client_credentials",
            **({"scope": login.scope} if login.scope else {}),
        }
        try:
            with httpx.Client(
                auth=(login.client_id, login.client_secret),
                timeout=self._settings.timeout_s,
                verify=verification(endpoint, self._settings.tls),
            ) as client:
                answer = client.post(endpoint, data=form)
                found = answer.json() if answer.is_success else {}
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise DependencyError(
                f"the token endpoint {endpoint} gives no token: {foreign(error)}",
                code="registry-unavailable",
                hint="see that it runs and can be reached from here",
            ) from error
        if not isinstance(found, dict) or "access_token" not in found:
            raise DependencyError(
                f"the token endpoint {endpoint} gives no token: it answers {answer.status_code}",
                code=REFUSED,
                hint="correct the client, its secret and its scope in source.converter",
            )
        return found


def verification(url: str, tls: TlsFiles) -> ssl.SSLContext | bool:
    """Return how a server's certificate is verified, and which one proves who we are.

    Raises:
        OSError: a file cannot be read, or is none of the kind.
    """
    if url.startswith("http://"):
        return False  # to read the authorities of this machine takes longer than the answer
    context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.certificate:
        context.load_cert_chain(tls.certificate, tls.key or None, tls.password or None)
    return context
