"""Flink and Paimon from PyPI and Maven Central, for the benchmark that compares with them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakemark.spark.jars import fetch, read_list
from stack.bench_packages import ensure_packages, locked

JARS: Final = Path(__file__).with_name("paimon-jars.json")

# What Flink's own configuration opens for it in Java 17 and later.
_OPEN: Final = ("lang", "lang.reflect", "io", "net", "nio", "text", "time", "util",
                "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks")  # fmt: skip
OPTIONS: Final = (
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPEN),
)


@dataclass(frozen=True, slots=True)
class Flink:
    """Where Flink and Paimon are.

    Attributes:
        packages: folder of the Python packages, for PYTHONPATH.
        classpath: Flink's own jars, then Paimon, the Kafka connector and Hadoop.
        paimon: the jar of Paimon, which has its actions too.
    """

    packages: Path
    classpath: list[Path]
    paimon: Path


def ensure_flink(progress: Callable[[str], None] = lambda _: None) -> Flink:
    """Return where Flink and Paimon are, fetching them (0.4 GB) if they are not here.

    Raises:
        StackError: if the packages cannot be installed.
        JarError: if the jars cannot be fetched.
    """
    packages = ensure_packages(progress)
    jars = fetch(JARS, progress=progress)
    own = sorted((packages / "pyflink" / "lib").glob("*.jar"))
    return Flink(packages, [*own, *jars], jars[0])


def versions() -> dict[str, str]:
    """Versions of what `ensure_flink` fetches."""
    found = locked()
    return {
        "flink": found["apache-flink-libraries"],
        "paimon": read_list(JARS)[0].version,
        "pypaimon-rust": found["pypaimon-rust"],
    }
