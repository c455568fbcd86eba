"""`lakemark doctor` as a whole: what is away, what hangs, what is printed, how it ends."""

import json
import socket
import time

import pytest

from lakemark.model.findings import fine, gathered, warning, wrong
from lakemark.ops.doctor import doctor
from stack.processes import free_port
from tests.kit.command_line import invoke
from tests.kit.connector_settings import config
from tests.kit.verdicts import ERROR, bad, of

FINE = fine("select", "public.orders", "granted")
KNOWN = warning("key", "public.orders", "is deferrable", "ALTER TABLE x;")
BROKEN = wrong("signal table", "public.s", "hush-4hush may not insert", "GRANT INSERT TO [mark];")


def away(tmp_path, **changes):
    settings = {
        "kafka__bootstrap_servers": f"127.0.0.1:{free_port()}",
        "kafka__timeout": "1s",
        "source": {
            "connect": {
                "url": f"http://127.0.0.1:{free_port()}",
                "connector": "shop",
                "timeout": "1s",
            }
        },
        "database": {"url": f"postgresql://u@127.0.0.1:{free_port()}/d", "connect_timeout": "2s"},
        "lake": {"path": str(tmp_path / "lake")},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    return config(**settings | changes)


@pytest.mark.slow
def test_everybody_away_makes_errors_of_their_own_checks_only(tmp_path):
    found = doctor.examine(away(tmp_path))
    assert "is away" in of(found, "brokers")[0].reason
    assert "is away" in of(found, "connector")[0].reason
    assert "is away" in of(found, "database")[0].reason
    for check in ("change topic", "own topic", "place in the log", "connector setting", "wal_level",
                  "slot", "signal table", "select", "key", "columns", "replica identity"):  # fmt: skip
        (finding,) = of(found, check)
        assert finding.verdict is ERROR
        assert finding.reason.startswith("not checked: ")
    assert [f.verdict for f in of(found, "folder")] == ["ok", "ok"]
    assert [f.verdict for f in of(found, "python")] == ["ok"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_output_topics_are_not_taken_for_sound_when_nobody_can_be_asked(tmp_path):
    found = doctor.examine(away(tmp_path, output={"topic_prefix": "clean"}))
    (finding,) = of(found, "output topic")
    assert finding.verdict is ERROR
    assert finding.reason == "not checked: the brokers did not answer"


@pytest.fixture
def mute():
    """An address that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
def test_nobody_who_hangs_holds_it_up(tmp_path, mute):
    hanging = away(
        tmp_path,
        kafka__bootstrap_servers=mute,
        kafka__timeout="60s",
        source={"connect": {"url": f"http://{mute}", "connector": "shop", "timeout": "60s"}},
        database={"url": f"postgresql://u@{mute}/d", "connect_timeout": "60s"},
    )
    begun = time.monotonic()
    found = doctor.examine(hanging, deadline_s=1)
    assert time.monotonic() - begun < 15
    for check, whom in (("brokers", "Kafka"), ("connector", "Kafka Connect"), ("database", "the database")):  # fmt: skip
        assert of(found, check)[0].reason == f"{whom} did not answer everything within 1 s"


@pytest.mark.slow
def test_an_error_nobody_foresaw_is_a_finding(tmp_path, monkeypatch):
    def broken(_):
        raise RuntimeError("odd")

    monkeypatch.setattr(doctor, "machine_facts", broken)
    found = doctor.examine(away(tmp_path), deadline_s=20)
    assert of(found, "machine")[0].reason == "this machine could not be examined: RuntimeError: odd"
    assert of(found, "java")[0].verdict is ERROR
    assert "is away" in of(found, "brokers")[0].reason


# --- what is printed ------------------------------------------------------------------------


@pytest.fixture
def told(folder, monkeypatch):
    """What the examination finds."""
    found = [FINE]
    monkeypatch.setattr(doctor, "examine", lambda _: found)
    return found


def test_nothing_wrong_is_exit_code_0(told):
    told += [KNOWN, fine("select", "public.items", "granted")]
    result = invoke("doctor")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "✓ select  public.orders, public.items  granted",
        "! key     public.orders                is deferrable",
        "    → ALTER TABLE x;",
        "0 ✗, 1 !, 1 ✓",
    ]


def test_an_error_is_exit_code_1_and_nothing_is_taken_for_markup_or_shown_if_secret(told):
    told.append(BROKEN)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "✗ signal table  public.s       ••• may not insert" in result.output
    assert "    → GRANT INSERT TO [mark];" in result.output
    assert result.output.endswith("1 ✗, 0 !, 1 ✓\n")


def test_as_json(told):
    told += [KNOWN, BROKEN]
    result = invoke("doctor", "--output", "json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert [row["verdict"] for row in shown] == ["ok", "warning", "error"]
    assert shown[1] == {
        "check": "key",
        "subject": "public.orders",
        "verdict": "warning",
        "reason": "is deferrable",
        "mend": "ALTER TABLE x;",
    }
    assert "•••" in shown[2]["reason"]


def test_an_invalid_configuration_is_exit_code_3(folder):
    (folder / "lakemark.yaml").write_text("name: shop")
    assert invoke("doctor").exit_code == 3


def test_fine_findings_that_say_the_same_share_a_line():
    many = [fine("key", f"t{n}", "has one") for n in range(5)]
    found = gathered([*many[:2], KNOWN, *many[2:], fine("key", "u", "other")])
    assert [f.subject for f in found] == ["t0, t1, t2 and 2 more", "public.orders", "u"]
    assert len(bad(found)) == 1


def test_what_is_the_same_for_many_tables_is_one_line(told):
    told.clear()
    for number in range(250):
        name = f"public.t{number:03}"
        told.append(fine("select", name, "granted"))
        told.append(wrong("key", name, f"{name} has no key", f"ALTER TABLE {name} …"))
    told.append(wrong("key", "public.t0", "another reason"))
    some = "public.t000, public.t001, public.t002 and 247 more"
    result = invoke("doctor")
    assert [" ".join(line.split()) for line in result.output.splitlines()] == [
        f"✓ select {some} granted",
        f"✗ key {some} TABLE has no key",
        "→ ALTER TABLE TABLE …",
        "✗ key public.t0 another reason",
        "2 ✗, 0 !, 1 ✓",
    ]
    assert len(json.loads(invoke("doctor", "-o", "json").stdout)) == 501
