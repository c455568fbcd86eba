"""What is compiled is kept where lakemark keeps things, or nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from lakemark.source import scan_json

SCRIPT = """
from lakemark.source import plain, scan_json
plain.ready()
print(scan_json.KEPT)
"""


def kept(place):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"LAKEMARK_CACHE": str(place), "HOME": "/nowhere", "PATH": ""},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def files(folder):
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.nb?")}


def test_it_is_compiled_once_for_all_processes(tmp_path):
    folder = Path(kept(tmp_path))
    assert folder.is_relative_to(tmp_path)
    compiled = files(folder)
    assert len(compiled) > 10
    assert kept(tmp_path) == str(folder)
    assert files(folder) == compiled


def test_where_nothing_can_be_kept_it_works_all_the_same():
    beside = Path(scan_json.__file__).parent
    before = files(beside)
    assert kept("/proc/nowhere") == ""
    assert files(beside) == before


@pytest.mark.parametrize("error", [PermissionError, RuntimeError])
def test_a_home_that_is_not_there(monkeypatch, error):
    def nowhere():
        raise error

    monkeypatch.setattr(scan_json, "cache_dir", nowhere)
    assert scan_json._kept() == ""
