"""Apicurio Registry from Maven's repository: schemas in memory, gone when it ends.

It speaks its own API and Confluent's. Confluent's own registry is in no repository.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from lakemark.spark.jars import Progress
from stack.archives import unpacked
from stack.java import find_java
from stack.processes import Server, StackError, free_port

VERSIONS: Final[Mapping[str, int]] = {"2.6": 17, "3.3": 21}
"""The versions that can be had, the usual one first, and the oldest Java that runs each."""

_RUNNERS: Final = ("*-runner.jar", "quarkus-run.jar", "quarkus-app/quarkus-run.jar")

_CLIENT = httpx.Client(timeout=2, trust_env=False, verify=False)


class Registry(Server):
    """A registry on a free loopback port, see `Server`; it comes back empty with the same port.

    Args:
        version: one of `VERSIONS`.
        directory: where its process runs.
        log: the log file.
        detached: whether it may outlive this process.
        port: the port, a free one unless given.
    """

    def __init__(
        self,
        *,
        version: str = next(iter(VERSIONS)),
        directory: Path,
        log: Path,
        detached: bool = False,
        port: int | None = None,
    ) -> None:
        super().__init__(directory=directory, log=log, detached=detached)
        self.name = f"Apicurio Registry {version}"
        self.version = version
        self.port = port or free_port()
        self._management_port = free_port()

    @property
    def address(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address of Apicurio's own API, which its converter of 2.x speaks to both versions."""
        return f"{self.address}/apis/registry/v2"

    @property
    def compatible_url(self) -> str:
        """The address of Confluent's API."""
        return f"{self.address}/apis/ccompat/v7"

    def fetch(self, progress: Progress | None = None) -> Path:
        """Return the directory of its program, fetching and unpacking it if needed."""
        jar_list = Path(__file__).with_name(f"apicurio-{self.version}.json")
        return unpacked(jar_list, "registry", progress=progress)

    def _prepare(self) -> None:
        self.fetch()

    def _command(self) -> list[str]:
        return [
            str(find_java(VERSIONS[self.version])),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.management.host=127.0.0.1",
            f"-Dquarkus.management.port={self._management_port}",
            "-Dapicurio.rest.deletion.artifact.enabled=true",  # 3.x deletes nothing by itself
            *("-jar", str(_runner(self.fetch()))),
        ]

    def _is_ready(self) -> bool:
        try:
            return _CLIENT.get(f"{self.url}/system/info").is_success
        except httpx.TransportError:
            return False


def _runner(home: Path) -> Path:
    """Return the jar that starts it.

    Raises:
        StackError: the archive has none.
    """
    for name in _RUNNERS:
        if found := sorted(home.glob(name)) or sorted(home.glob(f"*/{name}")):
            return found[0]
    raise StackError(f"{home} has no {' and no '.join(_RUNNERS)}")
