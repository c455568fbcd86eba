"""Kafka Connect's REST API: the connector's configuration, state and committed source offsets."""

import difflib
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from lakemark.errors import DependencyError
from lakemark.settings.config import ConnectConfig
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake
from lakemark.settings.masking import foreign

# A worker answers 409 while it rebalances; that is over in seconds. With a timeout of 10 s each
# and 0.5 + 1 + 2 s between them, four attempts end after 44 s at the latest.
ATTEMPTS: Final = 4
log = structlog.get_logger("lakemark.connect")
UNKNOWN_CONNECTOR: Final = "source.connect.connector"
"""The setting at fault where Connect answers 404."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task: RUNNING, FAILED (then with its stack trace), PAUSED, UNASSIGNED, …."""

    id: int
    state: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """A connector's own state and those of its tasks, in Connect's words."""

    state: str
    tasks: tuple[TaskStatus, ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of Connect.

    Attributes:
        version: Kafka's.
        cluster_id: of the Kafka that it keeps its own topics in.
        skew_s: by how much its clock is ahead of ours; None if it does not say the time.
    """

    version: str
    cluster_id: str
    skew_s: float | None


def _say_waiting(state: RetryCallState) -> None:
    failed = state.outcome.exception() if state.outcome else None
    log.warning("connect.waiting", attempt=state.attempt_number, reason=str(failed))


class ConnectRest:
    """A client for one connector. Every call ends: timeouts and four attempts, unless told.

    Raises (every method):
        DependencyError: Connect does not answer, or answers with an error of its own.
        InvalidConfig: it does not know the connector, or refuses us.
    """

    def __init__(
        self,
        connect: ConnectConfig,
        *,
        transport: httpx.BaseTransport | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self._connect, self._attempts = connect, attempts
        self._client = httpx.Client(
            base_url=connect.url,
            auth=self._signed if connect.username else None,
            timeout=connect.timeout.total_seconds(),
            transport=transport,
            # To read the authorities of this machine takes longer than the answer.
            verify=not connect.url.startswith("http://"),
        )
        self.backoff = 0.5

    def __enter__(self) -> Self:
        """Connects lazily, with the first call."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self._client.close()

    def settings(self) -> dict[str, str]:
        """The connector's configuration, its placeholders as they are."""
        found = self._get(f"{self._path()}/config")
        if not isinstance(found, dict):
            raise self._odd_answer()
        return {str(name): str(value) for name, value in found.items() if value is not None}

    def offsets(self) -> list[dict[str, Any]]:
        """Committed source offsets: ``[{"partition": {…}, "offset": {…}}]``.

        Raises:
            DependencyError: `connect-too-old`: it has the connector and does not tell them.
        """
        try:
            answer = self._get(f"{self._path()}/offsets")
        except InvalidConfig as error:
            if all(problem.path != UNKNOWN_CONNECTOR for problem in error.problems):
                raise
            self.settings()  # it may be the connector that it does not know
            raise DependencyError(
                f"Connect {self.worker().version} at {self._shown()} does not tell the offsets of "
                "its connectors",
                code="connect-too-old",
                hint="Connect 3.6 or newer does; with an older one chunks of tables with output "
                "topics wait for a later event in every partition of the tables",
            ) from error
        entries = answer.get("offsets") if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise self._odd_answer()
        return entries

    def status(self) -> ConnectorStatus:
        """Return the states of the connector and its tasks."""
        answer = self._get(f"{self._path()}/status")
        try:
            tasks = [
                TaskStatus(int(t["id"]), str(t["state"]), str(t.get("trace", "")))
                for t in answer["tasks"]
            ]
            return ConnectorStatus(str(answer["connector"]["state"]), tuple(tasks))
        except (KeyError, TypeError, ValueError) as error:
            raise self._odd_answer() from error

    def worker(self) -> Worker:
        """The worker that answers: its version, its Kafka and its clock."""
        begun = time.time()
        response = self._response("/")
        middle = (begun + time.time()) / 2
        answer = response.json()
        if not isinstance(answer, dict) or "version" not in answer:
            raise self._odd_answer()
        try:
            said = parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError):
            return Worker(str(answer["version"]), str(answer.get("kafka_cluster_id", "")), None)
        # The header has whole seconds, cut off: half a second is what is lost on average.
        return Worker(
            str(answer["version"]), str(answer.get("kafka_cluster_id", "")), said + 0.5 - middle
        )

    def _signed(self, request: httpx.Request) -> httpx.Request:
        """Sign a request with the password as it is now: its file may have been written anew."""
        user, password = self._connect.username, self._connect.password
        basic = httpx.BasicAuth(user or "", password.get_secret_value() if password else "")
        return next(basic.auth_flow(request))

    def _path(self) -> str:
        return f"/connectors/{quote(self._connect.connector, safe='')}"

    def _get(self, path: str) -> Any:
        return self._response(path).json()

    def _response(self, path: str) -> httpx.Response:
        retrying = Retrying(
            retry=retry_if_exception_type(DependencyError),
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential(multiplier=self.backoff),
            before_sleep=_say_waiting,
            reraise=True,
        )
        return retrying(self._get_once, path)

    def _get_once(self, path: str) -> httpx.Response:
        try:
            response = self._client.get(path)
        except httpx.TransportError as error:
            raise self._away(foreign(error) or type(error).__name__) from error
        status = response.status_code
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            message = f"Connect at {self._shown()} refuses us with status {status}"
            hint = "set source.connect.username and source.connect.password"
            raise LoginRefused(Mistake("source.connect", message, hint), code="connect-refused")
        if status == httpx.codes.NOT_FOUND:
            raise self._unknown()
        if not response.is_success:
            raise self._away(f"it answered with status {status}")
        try:
            response.json()
        except ValueError as error:
            raise self._odd_answer() from error
        return response

    def _unknown(self) -> InvalidConfig:
        connector = self._connect.connector
        try:
            answer = self._client.get("/connectors").json()
            known = [str(name) for name in answer] if isinstance(answer, list) else []
        except (httpx.HTTPError, ValueError):
            known = []
        near = difflib.get_close_matches(connector, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(known) or 'none'}"
        message = f"Connect at {self._shown()} has no connector {connector!r}"
        return InvalidConfig([Mistake(UNKNOWN_CONNECTOR, message, hint)])

    def _away(self, reason: str) -> DependencyError:
        return DependencyError(
            f"Kafka Connect at {self._shown()} is away: {reason}",
            code="connect-unavailable",
            hint="start Connect, or name the connector's JSON file in source.connector_file",
        )

    def _odd_answer(self) -> InvalidConfig:
        message = f"{self._shown()} does not answer like Kafka Connect"
        hint = "set source.connect.url to the REST address of a worker"
        return InvalidConfig([Mistake("source.connect.url", message, hint)])

    def _shown(self) -> str:
        url = httpx.URL(self._connect.url)
        return str(url.copy_with(userinfo=b""))
