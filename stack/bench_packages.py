"""What only the benchmarks need from PyPI: Flink, Paimon's reader, py-spy, matplotlib.

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
from pathlib import Path
from typing import Final

from stack.processes import StackError

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements-bench.lock"
HOME: Final = ROOT / ".lakemark" / "benchmarks"


def ensure_packages(progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of the packages, for PYTHONPATH, fetching them if they are not there.

    Raises:
        StackError: if they cannot be installed. Not retried.
    """
    HOME.parent.mkdir(exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = hashlib.sha256(LOCK.read_bytes()).hexdigest()
        made = HOME / "stamp"
        if not made.exists() or made.read_text() != stamp:
            progress("fetching Flink, Paimon's reader, py-spy and matplotlib from PyPI (0.3 GB)")
            _install()
            made.write_text(stamp)
    return HOME


def locked() -> dict[str, str]:
    """Version of each package."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if "==" in line)


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
        raise StackError(
            "the benchmarks' packages could not be fetched; it is tried again at the next use:"
            f" {result.stderr.strip()[-500:]}"
        )
