"""What is run from the cache, and files of secrets: whose they are and who may write them."""

import os
import stat
from pathlib import Path

import pytest

from lakemark.cli.check import check
from lakemark.converters import compiler
from lakemark.ops.doctor import checks_machine
from lakemark.ops.doctor.facts_machine import machine_facts
from lakemark.settings import cache, own_files
from lakemark.settings.config import load
from lakemark.sink.delta import index_cache
from lakemark.spark.class_archive import ClassArchive
from tests.kit.connector_settings import config
from tests.kit.verdicts import WARNING
from tests.unit.sink.test_index_cache import index

EVIL = "cos\nsystem\n(S'echo'\ntR."


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "cache" / "folder"
    assert own_files.make(made) == ""
    (made / "a.nbi").write_text("ours")
    return made


@pytest.fixture
def others(monkeypatch):
    """From now on what is there is another user's."""

    def _others():
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        monkeypatch.setattr(own_files, "_ROOT", -1)

    return _others


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_of_this_user_alone(folder):
    assert mode(folder) == 0o700
    assert own_files.distrust(folder) == ""


@pytest.mark.parametrize("bits", [0o770, 0o777, 0o702, 0o720])
def test_a_folder_that_others_may_write_is_made_anew(folder, bits):
    folder.chmod(bits)
    assert "others can write" in own_files.distrust(folder)
    assert "others can write" in own_files.make(folder)
    assert (mode(folder), list(folder.iterdir())) == (0o700, [])


@pytest.mark.parametrize("bits", [0o664, 0o602])
def test_a_file_that_others_may_write_counts_where_they_can_come(folder, bits):
    (folder / "a.nbi").chmod(bits)
    assert own_files.distrust(folder) == ""
    folder.chmod(0o755)
    assert "a.nbi" in own_files.distrust(folder)


def test_a_file_that_is_a_link_is_not_taken(folder, tmp_path):
    (tmp_path / "evil").write_text(EVIL)
    (folder / "b.nbi").symlink_to(tmp_path / "evil")
    assert "b.nbi is a link" in own_files.make(folder)
    assert list(folder.iterdir()) == []


def test_what_another_user_owns_is_neither_taken_nor_removed(folder, others):
    folder.chmod(0o755)
    others()
    assert "belongs to user" in own_files.distrust(folder)
    with pytest.raises(PermissionError, match="belongs to user"):
        own_files.make(folder)
    assert (folder / "a.nbi").exists()


def test_a_link_of_ours_leads_to_the_cache_and_one_of_others_does_not(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "link").symlink_to(folder.parent)
    through = tmp_path / "link" / "folder"
    assert own_files.distrust(through) == ""
    lstat = Path.lstat

    def made_by_another(path):
        found = lstat(path)
        if path.name != "link":
            return found
        return os.stat_result((*found[:4], 4711, *found[5:]))

    monkeypatch.setattr(Path, "lstat", made_by_another)
    assert "a link made by user 4711" in own_files.distrust(through)


def test_what_is_compiled_is_not_unpickled_from_what_others_may_write(tmp_path, monkeypatch, logs):
    monkeypatch.setattr(compiler, "cache_dir", lambda: tmp_path)
    kept = compiler._folder()
    assert (mode(kept), mode(kept.parent)) == (0o700, 0o700)
    (kept / "a.nbi").write_text(EVIL)
    assert compiler._folder() == kept
    assert (kept / "a.nbi").exists(), "nobody else may have written it"
    kept.chmod(0o777)
    assert compiler._folder() == kept
    assert not (kept / "a.nbi").exists()
    assert [(line["event"], line["made_anew"]) for line in logs] == [("cache.refused", True)]


def test_what_is_compiled_is_not_kept_where_another_user_is(tmp_path, monkeypatch, logs, others):
    monkeypatch.setattr(compiler, "cache_dir", lambda: tmp_path)
    compiler._folder()
    others()
    assert compiler._folder() is None
    assert "belongs to user" in logs[0]["reason"]
    assert "LAKEMARK_CACHE" in logs[0]["hint"]


def test_java_s_archive_is_not_mapped_from_what_others_may_write(tmp_path, logs):
    archive = ClassArchive(tmp_path / "classes" / "0123.jsa")
    archive.options()
    archive.part.write_bytes(b"classes")
    archive.part.chmod(0o666)
    archive.finish()
    assert (mode(archive.path.parent), mode(archive.path)) == (0o700, 0o644)
    assert "SharedArchiveFile" in archive.options()
    archive.path.parent.chmod(0o777)
    assert "ArchiveClassesAtExit" in archive.options()
    assert not archive.path.exists()
    assert [line["event"] for line in logs] == ["cache.refused"]


def test_java_s_archive_of_another_user_is_none(tmp_path, others):
    archive = ClassArchive(tmp_path / "classes" / "0123.jsa")
    archive.options()
    archive.path.write_bytes(b"classes")
    others()
    assert archive.options() == ""
    assert not archive.is_there()


def test_an_index_of_keys_that_another_user_wrote_counts_as_missing(cache, others):
    index_cache.put("a" * 40, index(3))
    assert index_cache._mapped(cache / ("a" * 40)) is not None
    others()
    assert index_cache._mapped(cache / ("a" * 40)) is None


# --- doctor and validate --------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "pw").write_text("hush-4hush")
    (tmp_path / "lakemark.yaml").write_text(
        "name: shop\n"
        "kafka: {bootstrap_servers: localhost:9092}\n"
        "source: {connect: {url: http://localhost:8083, connector: shop, username: a,"
        " password: '${file:pw}'}}\n"
        "lake: {path: ./lake, storage_options: {AWS_SECRET_ACCESS_KEY: 'x${file:pw}'}}\n"
        "checkpoint: ./checkpoint\n"
    )
    return tmp_path / "pw"


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0o600, None),
        (0o640, None),  # a group is chosen, as in Kubernetes
        (0o644, "every user can read"),
        (0o620, "others can write"),
        (0o666, "others can write"),
    ],
)
def test_a_secret_s_file_that_everybody_can_read_is_named(secret, bits, words):
    secret.chmod(bits)
    loaded = load(secret.parent / "lakemark.yaml", {})
    assert loaded.secret_files() == (secret,)
    problems = [p for p in check(loaded) if str(secret) in p.message]
    found = [f for f in checks_machine.findings(machine_facts(loaded)) if f.check == "secret"]
    if words is None:
        assert problems == found == []
        return
    (problem,), (finding,) = problems, found
    assert problem.warning
    assert words in problem.message
    assert (finding.verdict, finding.subject) == (WARNING, str(secret))
    assert words in finding.reason
    assert f"chmod 600 {secret}" == problem.hint == finding.mend


def test_a_cache_that_others_may_write_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path))
    assert list(cache.trust()) == []
    own_files.make(tmp_path / cache.CLASSES)
    own_files.make(tmp_path / cache.COMPILED)
    (tmp_path / cache.COMPILED / "abc").mkdir(mode=0o700)
    (tmp_path / cache.COMPILED / "abc").chmod(0o777)
    facts = machine_facts(config())
    ours, theirs = (f for f in checks_machine.findings(facts) if f.check == "cache")
    assert (ours.verdict.value, theirs.verdict) == ("ok", WARNING)
    assert "others can write" in theirs.reason
    assert "abc" in theirs.reason
    problems = [p for p in check(config()) if "cache" in p.message]
    assert [p.warning for p in problems] == [True]
    assert "others can write" in problems[0].message
