"""Where the tests of the page get their browser from."""

import os
import subprocess
from pathlib import Path

import pytest

from stack.browser import ensure_browser, find_browser
from tests.kit.browser import chromium

APT = """#!/bin/sh
echo "$@" >> "$LOG"
[ "$1" != "$FAILS" ] || { echo "E: Unable to locate" >&2; exit 100; }
[ "$1" != install ] || { echo > "$BIN/chromium"; chmod +x "$BIN/chromium"; }
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Path:
    """Root on a machine that has apt-get and no browser."""
    for name, value in {"PATH": tmp_path, "BIN": tmp_path, "FAILS": "nothing"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOG", str(tmp_path / "asked"))
    monkeypatch.delenv("LAKEMARK_CHROMIUM", raising=False)
    monkeypatch.delenv("REQUIRE_BROWSER", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("stack.browser.NAMES", ("chromium",))
    _program(tmp_path / "apt-get", APT.replace("chmod", "/bin/chmod"))
    return tmp_path


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _asked(machine: Path) -> list[str]:
    log = machine / "asked"
    return log.read_text().splitlines() if log.exists() else []


def test_it_is_installed_where_there_is_none(machine):
    said: list[str] = []
    ensure_browser(said.append)
    assert _asked(machine) == [
        "update -qq",
        "install -y -qq --no-install-recommends chromium",
    ]
    assert find_browser() == str(machine / "chromium")
    assert said == ["this machine has no Chromium: fetching it with apt-get (0.1 GB)"]
    ensure_browser(said.append)
    assert len(_asked(machine)) == 2, "once is enough"


@pytest.mark.parametrize("step", ["update", "install"])
def test_a_failure_is_a_warning(machine, monkeypatch, step):
    monkeypatch.setenv("FAILS", step)
    said: list[str] = []
    ensure_browser(said.append)
    assert said[1:] == [f"warning: no Chromium, apt-get {step} failed: E: Unable to locate"]
    assert _asked(machine)[-1].startswith(step), "nothing is tried after it"


def test_a_mirror_that_hangs_is_a_warning(machine, monkeypatch):
    def hangs(command, **_):
        raise subprocess.TimeoutExpired(command, 600)

    monkeypatch.setattr(subprocess, "run", hangs)
    said: list[str] = []
    ensure_browser(said.append)
    assert "timed out after 600 seconds" in said[1]


def test_nothing_is_installed_without_the_right_to(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    ensure_browser(pytest.fail)
    assert _asked(machine) == []


def test_nothing_is_installed_without_apt_get(machine):
    (machine / "apt-get").unlink()
    ensure_browser(pytest.fail)


def test_a_browser_that_the_user_names_is_enough(machine, monkeypatch):
    monkeypatch.setenv("LAKEMARK_CHROMIUM", "/opt/browser")
    ensure_browser(pytest.fail)
    assert chromium() == "/opt/browser"


def test_tests_of_the_page_are_skipped_without_one_and_fail_where_it_is_required(
    machine, monkeypatch
):
    with pytest.raises(pytest.skip.Exception, match="no Chromium on this machine"):
        chromium()
    monkeypatch.setenv("REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium on this machine"):
        chromium()
