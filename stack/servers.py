"""The three ways in which tests get their servers; the variable `LAKEMARK_TEST_SERVERS` says which.

`processes` starts them as child processes, `containers` as containers of an engine like Docker, and
`addresses` takes those that the environment names. What a test uses is `stack.local.Servers`.
"""

import enum
from collections.abc import Collection, Mapping
from typing import Final

from stack.addresses import GivenServers
from stack.containers import ContainerServers
from stack.local import SERVICES, LocalStack, Servers
from stack.processes import StackError

VARIABLE: Final = "LAKEMARK_TEST_SERVERS"


class Way(enum.StrEnum):
    """How tests get their servers."""

    PROCESSES = "processes"
    CONTAINERS = "containers"
    ADDRESSES = "addresses"


def way_of(environ: Mapping[str, str]) -> Way:
    """Return the way that an environment asks for: child processes unless it says another.

    Raises:
        StackError: it asks for none of the three.
    """
    asked = environ.get(VARIABLE) or Way.PROCESSES
    try:
        return Way(asked)
    except ValueError:
        raise StackError(f"{VARIABLE} is {asked!r}: it may be {', '.join(Way)}") from None


def servers_of(
    environ: Mapping[str, str],
    *,
    name: str,
    services: Collection[str] = SERVICES,
    postgres_settings: Mapping[str, str] | None = None,
) -> Servers:
    """Return the servers that an environment asks for; they are not started yet.

    Args:
        environ: says in which way, and where they are.
        name: names the directory of what they leave.
        services: which of `kafka`, `connect` and `postgres`.
        postgres_settings: server settings for PostgreSQL on top of ours.

    Raises:
        StackError: it asks for no way that there is, or an address is missing.
    """
    match way_of(environ):
        case Way.PROCESSES:
            settings = dict(postgres_settings or {})
            return LocalStack(name=name, services=tuple(services), postgres_settings=settings)
        case Way.CONTAINERS:
            return ContainerServers(
                name=name, services=services, postgres_settings=postgres_settings
            )
        case Way.ADDRESSES:
            return GivenServers(
                environ, name=name, services=services, postgres_settings=postgres_settings
            )
