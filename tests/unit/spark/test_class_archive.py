"""Java's class archive: made once, used afterwards, never in the way."""

import os
import shlex
from contextlib import nullcontext

import pytest

from lakemark.spark import class_archive, jars, warm
from lakemark.spark.class_archive import ClassArchive


@pytest.fixture
def archive(tmp_path):
    return ClassArchive(tmp_path / "classes" / "0123.jsa")


def test_a_folder_with_a_space_stays_one_option(tmp_path):
    archive = ClassArchive(tmp_path / "my cache" / "0123.jsa")
    assert shlex.split(archive.options())[-1] == f"-XX:ArchiveClassesAtExit={archive.part}"


def test_the_first_start_writes_it_and_the_next_one_maps_it(archive):
    assert f"-XX:ArchiveClassesAtExit={archive.part}" in archive.options()
    archive.part.write_bytes(b"classes")
    archive.finish()
    assert archive.path.read_bytes() == b"classes"
    assert not archive.part.exists()
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options()


def test_java_that_wrote_nothing_is_no_matter(archive):
    archive.options()
    archive.finish()
    assert not archive.path.exists()


def test_what_killed_processes_left_is_removed(archive):
    archive.options()
    dead = archive.path.with_suffix(".999999999.part")
    dead.touch()
    archive.part.touch()
    archive.options()
    assert not dead.exists()
    assert archive.part.exists()  # this process is alive


def test_a_cache_that_cannot_be_written_means_no_options(tmp_path):
    (tmp_path / "file").touch()
    assert ClassArchive(tmp_path / "file" / "x.jsa").options() == ""


def test_another_java_or_other_jars_have_another_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path))
    names = set()
    for version in ("17.0.1", "17.0.2"):
        home = tmp_path / version
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch(mode=0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}"')
        monkeypatch.setenv("JAVA_HOME", str(home))
        for classpath in ([], [tmp_path / "a.jar"]):
            names.add(class_archive.class_archive(classpath).path)
    assert len(names) == 4
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(jars.JarError, match="no Java"):
        class_archive.class_archive([])


@pytest.fixture
def java(archive, monkeypatch):
    """What is done with Java to make an archive; Java itself does nothing."""
    done = []

    def session(config):
        done.append(config.name)
        return nullcontext()

    monkeypatch.setattr(jars, "runtime_jars", list)
    monkeypatch.setattr(warm, "class_archive", lambda _: archive)
    monkeypatch.setattr(warm, "session", session)
    monkeypatch.setattr(warm, "_load", lambda *_: done.append("load"))
    monkeypatch.setattr(warm, "_stream", lambda *_: done.append("stream"))
    return done


def test_warming_starts_no_java_where_there_is_an_archive(archive, java):
    archive.path.parent.mkdir()
    archive.path.write_bytes(b"classes")
    assert warm.warm() == (archive.path, False)
    assert java == []


def test_warming_says_that_there_is_no_archive_afterwards(archive, java):
    with pytest.raises(warm.ArchiveError, match="left no archive") as caught:
        warm.warm()
    assert "LAKEMARK_CACHE" in caught.value.hint
    assert java == ["warm", "load", "stream"]
