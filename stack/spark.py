"""A standalone Spark cluster on this machine: a master, and workers of one core each.

Example:
    with SparkCluster(directory, workers=2) as cluster:
        settings = {"spark.master": cluster.url}
"""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

from lakemark.spark.jars import pyspark_jars
from stack.java import find_java
from stack.processes import Server, free_port, start_together

HOME = pyspark_jars().parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkServer(Server):
    """What master and worker share: Spark's own start script, on the loopback interface."""

    def _prepare(self) -> None:
        """Nothing has to be made."""

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "JAVA_HOME": str(find_java().parents[1]),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }

    def _start(self, main: str, *arguments: str) -> list[str]:
        return [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]


class SparkMaster(SparkServer):
    """The master of a standalone cluster, on free loopback ports."""

    name = "Spark's master"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, log=directory / "master.log")
        self.port, self.page_port = free_port(), free_port()

    @property
    def url(self) -> str:
        """The value of `spark.master`."""
        return f"spark://127.0.0.1:{self.port}"

    def seen(self) -> dict[str, Any]:
        """Return the cluster as its master sees it; empty while it does not answer."""
        try:
            page = f"http://127.0.0.1:{self.page_port}/json/"
            with urllib.request.urlopen(page, timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return {}

    def _command(self) -> list[str]:
        ports = ("--port", str(self.port), "--webui-port", str(self.page_port))
        return self._start("master.Master", "--host", "127.0.0.1", *ports)

    def _is_ready(self) -> bool:
        return self.seen().get("status") == "ALIVE"


class SparkWorker(SparkServer):
    """A worker with one core; its executors write below its directory."""

    def __init__(self, directory: Path, master: SparkMaster, number: int) -> None:
        super().__init__(directory=directory, log=directory / f"worker-{number}.log")
        self.name = f"Spark's worker {number}"
        self._master = master
        self.port, self.page_port = free_port(), free_port()

    def _command(self) -> list[str]:
        return self._start(
            "worker.Worker",
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--webui-port", str(self.page_port), "--cores", "1", "--memory", "1g"),
            *("--work-dir", str(self.directory), self._master.url),
        )

    def _is_ready(self) -> bool:
        workers = self._master.seen().get("workers", [])
        return any(w["port"] == self.port and w["state"] == "ALIVE" for w in workers)


class SparkCluster:
    """A master and its workers, started together and stopped together."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self.master = SparkMaster(directory)
        self.workers = [SparkWorker(directory, self.master, n) for n in range(workers)]

    @property
    def url(self) -> str:
        """The value of `spark.master`."""
        return self.master.url

    def __enter__(self) -> Self:
        start_together([self.master, *self.workers], stop=self.stop)
        return self

    def stop(self) -> None:
        """End all; executors end with their worker."""
        for server in (*self.workers, self.master):
            server.kill()

    def __exit__(self, *_: object) -> None:
        self.stop()
