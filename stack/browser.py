"""Chromium of the machine, for the tests of the page; Debian's, where it may be installed."""

import os
import shutil
import subprocess
from collections.abc import Callable

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STEPS = (
    ("apt-get", "update", "-qq"),
    ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"),
)
PATIENCE_S = 600  # 0.1 GB; a mirror that hangs must not hold the tests up for ever


def find_browser() -> str:
    """The browser's path, `LAKEMARK_CHROMIUM` first; empty where there is none."""
    return os.environ.get("LAKEMARK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")


def ensure_browser(progress: Callable[[str], None]) -> None:
    """Install Chromium where there is none, this process is root and apt-get is there.

    A failure is said and nothing more: the tests of the page are then skipped, or fail where
    `REQUIRE_BROWSER` is set.
    """
    if find_browser() or os.geteuid() or not shutil.which("apt-get"):
        return
    progress("this machine has no Chromium: fetching it with apt-get (0.1 GB)")
    for command in STEPS:
        if failed := _failure(command):
            progress(f"warning: no Chromium, {' '.join(command[:2])} failed: {failed}")
            return


def _failure(command: tuple[str, ...]) -> str:
    try:
        result = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (result.stderr.strip()[-500:] or "no reason given") if result.returncode else ""
