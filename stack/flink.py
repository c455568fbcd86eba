"""Flink and Paimon from PyPI and Maven Central, for the benchmark that compares with them.

Nothing of it is part of lakemark's environment: the packages go into a folder of their own, which
is made at the first use and again when the lock changes.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakemark.jars import fetch, read_list
from stack.processes import StackError

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements-paimon.lock"
JARS: Final = Path(__file__).with_name("paimon-jars.json")
HOME: Final = ROOT / ".lakemark" / "paimon"

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
    HOME.parent.mkdir(exist_ok=True)
    with (HOME.parent / "paimon.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = hashlib.sha256(LOCK.read_bytes()).hexdigest()
        made = HOME / "stamp"
        if not made.exists() or made.read_text() != stamp:
            progress("fetching Flink and Paimon's reader from PyPI (0.3 GB)")
            _install()
            made.write_text(stamp)
    jars = fetch(JARS, progress=progress)
    own = sorted((HOME / "pyflink" / "lib").glob("*.jar"))
    return Flink(HOME, [*own, *jars], jars[0])


def versions() -> dict[str, str]:
    """Versions of what `ensure_flink` fetches."""
    locked = dict(
        line.split(" ")[0].split("==") for line in LOCK.read_text().splitlines() if "==" in line
    )
    return {
        "flink": locked["apache-flink-libraries"],
        "paimon": read_list(JARS)[0].version,
        "pypaimon-rust": locked["pypaimon-rust"],
    }


def _install() -> None:
    """Install the packages; the constraint holds for what packs Flink's jars too."""
    shutil.rmtree(HOME, ignore_errors=True)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check"),
            *("--no-input", "--quiet", "--no-deps", "--require-hashes"),
            *("--target", str(HOME), "-r", str(LOCK)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PIP_CONSTRAINT": str(LOCK)},
    )
    if result.returncode:
        raise StackError(f"Flink could not be fetched: {result.stderr.strip()[-500:]}")
