"""What is compiled is kept where lakemark keeps things, or nowhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lakemark
from lakemark.converters import compiler
from lakemark.source import fetch
from tests.kit.nightly import nightly

SCRIPT = """
from lakemark.converters import compiler
from lakemark.source import fetch
print(compiler.KEPT, fetch.ready())
"""


def kept(place):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"LAKEMARK_CACHE": str(place), "HOME": "/nowhere", "PATH": ""},
        capture_output=True, text=True, timeout=300, check=True,  # compiling: 20 s of a core
    )  # fmt: skip
    *_, last = done.stdout.splitlines()
    folder, ready = last.split()
    return folder, ready == "True"


def files(folder):
    found = [*folder.rglob("*.nb?"), *folder.rglob(compiler.WHOLE)]
    return {file: file.stat().st_mtime_ns for file in found}


@pytest.mark.slow
def test_it_is_compiled_once_for_all_processes_and_again_where_it_is_damaged(tmp_path):
    """What is there already is a copy of what this process has: to compile it takes 20 seconds."""
    assert fetch.ready()
    assert compiler.KEPT is not None
    theirs = tmp_path / compiler.KEPT.relative_to(compiler.KEPT.parents[1])
    shutil.copytree(compiler.KEPT, theirs)
    compiled = files(tmp_path)
    assert len(compiled) > 10
    assert kept(tmp_path) == (str(theirs), True)
    assert files(tmp_path) == compiled

    for file in compiled:
        file.write_bytes(b"")
    assert kept(tmp_path) == (str(theirs), False)
    assert files(tmp_path) == {}
    assert kept(tmp_path) == (str(theirs), True)
    anew = files(tmp_path)
    names = {file.name.partition("-")[0] for file in anew}
    assert names <= {file.name.partition("-")[0] for file in compiled}, "a connector's may be there"
    assert {"scan_events", "scan_messages"} <= {name.partition(".")[0] for name in names}
    assert kept(tmp_path) == (str(theirs), True)
    assert files(tmp_path) == anew


@nightly  # it compiles everything once more
def test_where_nothing_can_be_kept_it_works_all_the_same():
    beside = Path(compiler.__file__).parent
    before = files(beside)
    assert kept("/proc/nowhere") == ("None", True)
    assert files(beside) == before


@pytest.mark.parametrize("error", [PermissionError, RuntimeError])
def test_a_home_that_is_not_there(monkeypatch, error):
    def nowhere():
        raise error

    monkeypatch.setattr(compiler, "cache_dir", nowhere)
    assert compiler._folder() is None


def test_what_is_whole_need_not_be_writable(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "cache_dir", lambda: tmp_path)
    folder = tmp_path / "compiled" / compiler.DIGEST
    folder.mkdir(parents=True)

    def refused(**_):
        raise PermissionError

    monkeypatch.setattr(compiler, "TemporaryFile", refused)
    assert compiler._folder() is None
    (folder / compiler.WHOLE).touch()
    assert compiler._folder() == folder


def test_the_cache_knows_every_file_that_is_compiled(monkeypatch):
    """What is kept of the old text would run on: numba looks at one file for each function."""
    package = Path(lakemark.__file__).parent
    compiled = {p for p in package.rglob("*.py") if "\n@compiled" in p.read_text(encoding="utf-8")}
    assert len(compiled) > 2
    read, known = Path.read_bytes, compiler._digest()
    for file in compiled:
        with monkeypatch.context() as changed:
            changed.setattr(Path, "read_bytes", lambda p, f=file: read(p) + b" " * (p == f))
            assert compiler._digest() != known, f"{file.name} is to be called scan_….py"
