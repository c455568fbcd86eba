"""The state of a running pipeline over HTTP, asked for by a command on the same machine."""

from typing import Final

import httpx
import msgspec

from lakemark.errors import ConfigError, DependencyError, RefusedError
from lakemark.ops.status import DEGRADED, STREAMING, Status
from lakemark.ops.waits import WaitAnswer, WaitRequest
from lakemark.settings.config import Config
from lakemark.settings.units import host_port

_TIMEOUT_S: Final = 3.0  # it answers from memory; beyond that the topics are asked
_LATE_S: Final = 15.0  # an answer may come so much later: Connect, Kafka or the lake is asked
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - not bound


def served_status(config: Config) -> Status | None:
    """Return the state from the process that runs the pipeline.

    Returns:
        None if `http.bind` names no address, if nobody answers there in time, or if the process
        there has another pipeline or runs no query: it stands by, or is about to start.
    """
    address = _address(config)
    if address is None:
        return None
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = client.get(f"{address}/v1/status", headers=_headers(config))
        if answer.status_code != httpx.codes.OK:
            return None
        found = msgspec.json.decode(answer.content, type=Status)
    except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
        return None  # another server, another version, or none
    runs = found.pipeline.state in {STREAMING, DEGRADED}
    return found if runs and found.name == config.name else None


def served_wait(config: Config, request: WaitRequest, *, within_s: float) -> WaitAnswer:
    """Return how far a wait is: as soon as all is visible, or in the given time.

    Args:
        config: says where the process that runs the pipeline answers.
        request: what is waited for.
        within_s: how long it may take; the process may answer earlier.

    Raises:
        ConfigError: ``no-answer``: it answers nowhere.
        DependencyError: ``no-answer``: nobody does; or the process cannot answer now.
        RefusedError: it cannot be waited for.
    """
    address = _address(config)
    if address is None:
        raise ConfigError(
            "the process that runs the pipeline cannot be asked: http.bind names no port",
            code="no-answer",
            hint="set http.bind to an address with a port, and restart it",
        )
    asked = httpx.QueryParams(
        {
            "table": request.tables,
            "connector": [connector for connector, _ in request.places if connector],
            **({"position": [t for _, t in request.places]} if request.places else {"now": "true"}),
            "timeout": f"{max(0.0, within_s):g}",
        }
    )
    try:
        with httpx.Client(timeout=within_s + _LATE_S, trust_env=False) as client:
            answer = client.get(f"{address}/v1/wait", headers=_headers(config), params=asked)
        if answer.status_code in {httpx.codes.OK, httpx.codes.ACCEPTED}:
            return msgspec.json.decode(answer.content, type=WaitAnswer)
        why = msgspec.json.decode(answer.content, type=_Refusal)
    except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DependencyError(
            f"no process that runs the pipeline answers at {address}",
            code="no-answer",
            hint="ask on its machine, or by HTTP; see lakemark status, and http.bind",
        ) from error
    away = answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    kind = DependencyError if away else RefusedError
    raise kind(why.reason, code=why.code, hint=why.hint)


class _Refusal(msgspec.Struct):
    code: str
    reason: str
    hint: str


def _headers(config: Config) -> dict[bytes, bytes]:
    token = config.http.token
    # As bytes: of text the client takes ASCII alone.
    return {b"authorization": f"Bearer {token.get_secret_value()}".encode()} if token else {}


def _address(config: Config) -> str | None:
    if config.http.bind is None:
        return None
    host, port = host_port(config.http.bind)
    if port == 0:
        return None
    host = _ANYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
