"""Jar lists: reading, fetching through a stand-in for Ivy, checking, sharing the cache."""

import hashlib
import json
import multiprocessing
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import LakemarkError
from lakemark.settings.cache import cache_dir
from lakemark.spark import jars
from lakemark.spark.jars import Jar, JarError, fetch, read_list

ONE = b"the first jar"
TWO = b"the second jar"

STAND_IN = """#!{python}
# Stands for `java … org.apache.ivy.Main`: serves files of a directory, and notes that it ran.
import pathlib, re, shutil, sys
home = pathlib.Path(__file__).parents[1]
arguments = dict(zip(sys.argv, sys.argv[1:]))
with (home / "runs").open("a") as runs:
    print(" ".join(sys.argv[1:]), file=runs)
(home / "settings").write_text(pathlib.Path(arguments["-settings"]).read_text())
module = pathlib.Path(arguments["-ivy"]).read_text()
library = pathlib.Path(arguments["-retrieve"].split("/[")[0])
pattern = 'org="([^"]+)" name="([^"]+)" rev="([^"]+)".*?<artifact [^>]*ext="([^"]+)"( e:classifier="([^"]+)")?'
for group, name, version, extension, _, classifier in re.findall(pattern, module):
    file = name + "-" + version + ("-" + classifier if classifier else "") + "." + extension
    source = home / "served" / file
    if source.exists():
        (library / group).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, library / group / file)
        print("\\t[SUCCESSFUL ] " + group + "#" + name)
    else:
        print("\\t\\tmodule not found: " + group + "#" + name + ";" + version)
"""


class Repository:
    """A Maven repository behind a stand-in for Java and Ivy."""

    def __init__(self, home: Path):
        self.home = home
        (home / "bin").mkdir(parents=True)
        (home / "served").mkdir()
        java = home / "bin" / "java"
        java.write_text(STAND_IN.replace("{python}", sys.executable))
        java.chmod(0o755)

    def serve(self, filename: str, content: bytes) -> None:
        (self.home / "served" / filename).write_bytes(content)

    @property
    def runs(self) -> list[str]:
        path = self.home / "runs"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def settings(self) -> str:
        return (self.home / "settings").read_text()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Repository:
    made = Repository(tmp_path / "java")
    monkeypatch.setenv("JAVA_HOME", str(made.home))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(jars, "BACKOFF_S", 0)
    return made


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def jar_list(tmp_path: Path, **entries: bytes | str) -> Path:
    """Write a jar list; `a__b__1` stands for `a:b:1`."""
    path = tmp_path / "list.json"
    pins = {
        key.replace("__", ":").replace("_", "."): v if isinstance(v, str) else sha(v)
        for key, v in entries.items()
    }
    path.write_text(json.dumps(pins))
    return path


# --- lists ------------------------------------------------------------------------------------


def test_coordinates_name_the_file_as_maven_does():
    assert Jar.parse("a.b:c:1.0", "0" * 64).filename == "c-1.0.jar"
    assert Jar.parse("a.b:c:1.0:linux", "0" * 64).filename == "c-1.0-linux.jar"
    archive = Jar.parse("a.b:c:1.0:plugin:tar.gz", "0" * 64)
    assert archive.filename == "c-1.0-plugin.tar.gz"
    assert archive.path(Path("/cache")) == Path("/cache/a.b/c-1.0-plugin.tar.gz")


@pytest.mark.parametrize("text", ["", "a", "a:b", "a:b:", ":b:1", "a:b:1:c:jar:more"])
def test_malformed_coordinates_are_refused(text):
    with pytest.raises(JarError, match="Maven coordinates"):
        Jar.parse(text, "0" * 64)


@pytest.mark.parametrize("checksum", ["", "0" * 63, "G" * 64, "0" * 40])
def test_a_checksum_must_be_a_sha256(checksum):
    with pytest.raises(JarError, match="SHA-256"):
        Jar.parse("a:b:1", checksum)


@pytest.mark.parametrize("text", ["", "[]", '{"a:b:1": 7}', "{"])
def test_a_malformed_list_is_refused_by_name(tmp_path, text):
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(JarError, match=re.escape(str(path))):
        read_list(path)


@pytest.mark.parametrize("name", ["processor/lakemark/spark/jars.json", "stack/jars.json"])
def test_our_lists_pin_each_file_once(name):
    listed = read_list(Path(__file__).parents[3] / name)
    files = [(jar.group, jar.filename) for jar in listed]
    assert len(set(files)) == len(files) > 10
    assert not any("SNAPSHOT" in jar.version for jar in listed)


def test_the_runtime_list_goes_with_the_installed_packages():
    import importlib.metadata

    versions = {jar.artifact: jar.version for jar in read_list(jars.RUNTIME_LIST)}
    assert versions["delta-spark_4.2_2.13"] == importlib.metadata.version("delta-spark")
    assert versions["spark-sql-kafka-0-10_2.13"] == importlib.metadata.version("pyspark")


# --- the cache --------------------------------------------------------------------------------


def test_the_cache_is_where_it_was_asked_to_be(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_dir({"LAKEMARK_CACHE": "/x", "XDG_CACHE_HOME": "/y"}) == Path("/x")
    assert cache_dir({"XDG_CACHE_HOME": "/y"}) == Path("/y/lakemark")
    assert cache_dir({}) == Path("/home/ada/.cache/lakemark")


# --- fetching ---------------------------------------------------------------------------------


def test_missing_files_are_fetched_in_one_go_and_kept(tmp_path, repository):
    repository.serve("one-1.jar", ONE)
    repository.serve("two-2-plugin.tar.gz", TWO)
    listed = jar_list(tmp_path, org_x__one__1=ONE, org_y__two__2__plugin__tar_gz=TWO)
    told: list[str] = []

    found = fetch(listed, cache=tmp_path / "cache", progress=told.append)

    assert [path.read_bytes() for path in found] == [ONE, TWO]
    assert found[0] == tmp_path / "cache" / "jars" / "org.x" / "one-1.jar"
    assert len(repository.runs) == 1
    assert told == ["fetching 2 files from the Maven repository", "fetched 2 of 2 files"]

    told.clear()
    assert fetch(listed, cache=tmp_path / "cache", progress=told.append) == found
    assert len(repository.runs) == 1
    assert told == []


def test_only_what_is_missing_is_fetched(tmp_path, repository):
    repository.serve("one-1.jar", ONE)
    cache = tmp_path / "cache"
    fetch(jar_list(tmp_path, x__one__1=ONE), cache=cache)
    repository.serve("two-2.jar", TWO)
    (repository.home / "served" / "one-1.jar").unlink()

    found = fetch(jar_list(tmp_path, x__one__1=ONE, x__two__2=TWO), cache=cache)

    assert [path.read_bytes() for path in found] == [ONE, TWO]


def test_a_damaged_file_is_fetched_again(tmp_path, repository):
    repository.serve("one-1.jar", ONE)
    listed = jar_list(tmp_path, x__one__1=ONE)
    (path,) = fetch(listed, cache=tmp_path / "cache")
    path.write_bytes(ONE[:-1])

    assert fetch(listed, cache=tmp_path / "cache")[0].read_bytes() == ONE


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(tmp_path, repository):
    repository.serve("one-1.jar", TWO)
    listed = jar_list(tmp_path, x__one__1=ONE)

    with pytest.raises(JarError) as caught:
        fetch(listed, cache=tmp_path / "cache")

    assert sha(TWO) in str(caught.value)
    assert sha(ONE) in str(caught.value)
    assert "who serves it" in caught.value.hint
    assert len(repository.runs) == 1
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_file_that_cannot_be_had_is_named_after_three_attempts(tmp_path, repository):
    listed = jar_list(tmp_path, x__one__1=ONE)

    with pytest.raises(JarError, match=r"x:one:1.*module not found") as caught:
        fetch(listed, cache=tmp_path / "cache")

    assert isinstance(caught.value, LakemarkError)
    assert "settings.xml" in caught.value.hint
    assert len(repository.runs) == 3
    assert [p.name for p in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_without_java_the_places_that_were_looked_at_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JarError, match=r"JAVA_HOME.*PATH"):
        fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")


def test_a_java_home_without_java_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JarError, match="gone"):
        fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(JarError, match="cannot be written") as caught:
        fetch(jar_list(tmp_path, x__one__1=ONE), cache=in_the_way)
    assert "LAKEMARK_CACHE" in caught.value.hint


@pytest.mark.slow
def test_processes_that_fetch_at_once_fetch_once(tmp_path, repository):
    repository.serve("one-1.jar", ONE)
    listed = jar_list(tmp_path, x__one__1=ONE)
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        found = pool.map(fetch_into, [(listed, tmp_path / "cache")] * 3)
    assert found == [ONE] * 3
    assert len(repository.runs) == 1


def fetch_into(order: tuple[Path, Path]) -> bytes:
    listed, cache = order
    return fetch(listed, cache=cache)[0].read_bytes()


# --- the user's Maven settings ----------------------------------------------------------------

SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0">
  <mirrors>
    <mirror><id>other</id><mirrorOf>{first}</mirrorOf><url>https://one.example/maven</url></mirror>
    <mirror><id>house</id><mirrorOf>{second}</mirrorOf><url>https://two.example/maven</url></mirror>
  </mirrors>
  <servers><server><id>house</id><username>ada</username><password>a"b</password></server></servers>
  <proxies><proxy><active>true</active><host>proxy.example</host><port>3128</port></proxy></proxies>
</settings>"""


def maven_settings(tmp_path: Path, text: str) -> None:
    (tmp_path / "home" / ".m2").mkdir(parents=True)
    (tmp_path / "home" / ".m2" / "settings.xml").write_text(text)


def test_the_mirror_its_password_and_the_proxy_are_taken_from_maven(tmp_path, repository):
    maven_settings(tmp_path, SETTINGS.format(first="snapshots", second="*,!internal"))
    repository.serve("one-1.jar", ONE)

    fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")

    assert 'root="https://two.example/maven"' in repository.settings
    assert 'host="two.example"' in repository.settings
    assert 'username="ada" passwd=\'a"b\'' in repository.settings
    assert "-Dhttps.proxyHost=proxy.example -Dhttp.proxyPort=3128" in repository.runs[0]
    assert 'a"b' not in repository.runs[0]


@pytest.mark.parametrize("of", ["snapshots", "*,!central", "external:http:*"])
def test_a_mirror_of_something_else_is_left_alone(tmp_path, repository, of):
    maven_settings(tmp_path, SETTINGS.format(first=of, second=of))
    repository.serve("one-1.jar", ONE)
    fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")
    assert "example" not in repository.settings


def test_settings_that_cannot_be_read_are_named(tmp_path, repository):
    maven_settings(tmp_path, "<settings>")
    with pytest.raises(JarError, match=r"settings\.xml"):
        fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")


def test_the_environments_proxy_is_used_without_its_password(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://ada:secret@proxy.example:8080")
    monkeypatch.setenv("no_proxy", "localhost,.house.example")
    repository.serve("one-1.jar", ONE)
    fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")
    (run,) = repository.runs
    assert "-Dhttps.proxyHost=proxy.example" in run
    assert "-Dhttps.proxyPort=8080" in run
    assert "-Dhttp.nonProxyHosts=localhost|*.house.example" in run
    assert "secret" not in run


def test_the_settings_for_ivy_are_nobody_elses_to_read(tmp_path, repository):
    repository.serve("one-1.jar", ONE)
    stand_in = repository.home / "bin" / "java"
    stand_in.write_text(
        stand_in.read_text()
        + "import os\n(home / 'mode').write_text(oct(os.stat(arguments['-settings']).st_mode))\n"
    )
    fetch(jar_list(tmp_path, x__one__1=ONE), cache=tmp_path / "cache")
    assert stat.S_IMODE(int((repository.home / "mode").read_text(), 8)) == 0o600


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\0"), max_size=30))
def test_what_is_asked_of_ivy_is_well_formed_whatever_the_names(name):
    from xml.etree import ElementTree as ET

    jar = Jar(group="g", artifact=name, version="1", classifier="", extension="jar", sha256="0")
    text = jars._ivy_module([jar])
    printable = all(c.isprintable() or c in "\t\n\r" for c in name)
    if printable:
        (dependency,) = ET.fromstring(text).iter("dependency")
        assert dependency.get("name").split() == name.split()
