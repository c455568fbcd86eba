"""The state of a running pipeline over HTTP, asked for by a command on the same machine."""

from typing import Final

import httpx
import msgspec

from lakemark.ops.status import DEGRADED, STREAMING, Status
from lakemark.settings.config import Config
from lakemark.settings.units import host_port

_TIMEOUT_S: Final = 3.0  # it answers from memory; beyond that the topics are asked
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
    token = config.http.token
    # As bytes: of text the client takes ASCII alone.
    headers = {b"authorization": f"Bearer {token.get_secret_value()}".encode()} if token else {}
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = client.get(f"{address}/v1/status", headers=headers)
        if answer.status_code != httpx.codes.OK:
            return None
        found = msgspec.json.decode(answer.content, type=Status)
    except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
        return None  # another server, another version, or none
    runs = found.pipeline.state in {STREAMING, DEGRADED}
    return found if runs and found.name == config.name else None


def _address(config: Config) -> str | None:
    if config.http.bind is None:
        return None
    host, port = host_port(config.http.bind)
    if port == 0:
        return None
    host = _ANYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
