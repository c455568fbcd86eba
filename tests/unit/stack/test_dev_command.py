"""`./dev test`: tests and checks at once, a sample of what is large, and what it leaves behind."""

import os
import sys
from types import SimpleNamespace

import pytest

from stack import cli
from stack.processes import StackError
from tests.kit import nightly


@pytest.mark.parametrize(("tests", "checks", "code"), [(0, 0, 0), (0, 1, 1), (3, 1, 3), (3, 0, 3)])
def test_what_the_checks_find_is_said_and_counts(tmp_path, monkeypatch, capfd, tests, checks, code):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "found by $*"\nexit {checks}\n')
    python.chmod(0o755)
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "quick")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(cli, "run_child", lambda _: tests)
    assert cli.run_tests([], quick=True) == code
    assert capfd.readouterr().err == "found by -m stack.cli check\n"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"PYTHONDONTWRITEBYTECODE": ""}, {}),
        (
            {"PYTHONDONTWRITEBYTECODE": "1"},
            {"PYTHONPYCACHEPREFIX": str(cli.ROOT / ".lakemark" / "bytecode")},
        ),
        (
            {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/mine"},
            {"PYTHONPYCACHEPREFIX": "/mine"},
        ),
    ],
)
def test_bytecode_is_kept_and_never_beside_sources_that_are_to_have_none(monkeypatch, given, kept):
    monkeypatch.setattr(os, "environ", dict(given))
    cli.keep_bytecode()
    assert os.environ == kept


def items():
    """Cases of a matrix of 12 of which 5 are asked for, and of one without a mark."""
    marked, plain = (lambda _: SimpleNamespace(args=(5,))), (lambda _: None)
    return [
        SimpleNamespace(nodeid=f"a.py::test_{name}[{n}-{m}]", get_closest_marker=mark)
        for name, mark in (("all", marked), ("plain", plain))
        for n in range(3)
        for m in range(4)
    ]


def test_the_quick_suite_has_a_sample_of_a_matrix_the_same_each_time(monkeypatch):
    monkeypatch.setattr(nightly, "QUICK", True)
    out = {item.nodeid for item in nightly.left_out(items())}
    assert len(out) == 7
    assert all("::test_all[" in name for name in out)
    assert out == {item.nodeid for item in nightly.left_out(items()[::-1])}


def test_all_other_runs_have_all_of_it(monkeypatch):
    monkeypatch.setattr(nightly, "QUICK", False)
    assert nightly.left_out(items()) == []


@pytest.mark.parametrize("asked", ["mariadb-11.4", "postgres"])
def test_servers_that_run_with_another_database_are_left_alone(asked, monkeypatch, capsys):
    server = SimpleNamespace(name="MariaDB 11.4", is_running=True, dsn=lambda _: "mariadb://a")
    running = SimpleNamespace(
        services=["kafka", "connect", "mariadb-11.4"],
        servers=[server],
        source_server=server,
        kafka=SimpleNamespace(bootstrap="b:1"),
        connect=SimpleNamespace(url="http://c"),
        logs="logs",
        directory=cli.ROOT,
    )
    monkeypatch.setattr(cli, "ensure_servers", lambda *_, **__: None)
    monkeypatch.setattr(cli.LocalStack, "attach", lambda: running)
    if asked == "postgres":
        with pytest.raises(StackError, match=r"MariaDB 11\.4 runs already: end it by \./dev down"):
            cli.up(asked)
    else:
        assert cli.up(asked) == 0
        assert "database    mariadb://a\n" in capsys.readouterr().out


def test_a_database_is_asked_for_by_its_products_name(monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    asked = []
    monkeypatch.setattr(cli, "run_demo", lambda **options: asked.append(options["database"]) or 0)
    for name in ("mariadb", "mysql", "mariadb-10.11"):
        assert cli.main(["demo", "--database", name]) == 0
    assert cli.main(["demo"]) == 0
    assert asked == ["mariadb-11.4", "mysql-9.7", "mariadb-10.11", "postgres"]
    with pytest.raises(SystemExit):
        cli.main(["demo", "--database", "oracle"])
    assert "there is no database oracle: only postgres, mariadb-11.4" in capsys.readouterr().err


def test_the_demo_is_told_the_form_of_its_records(monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    asked = []
    monkeypatch.setattr(cli, "run_demo", lambda **options: asked.append(options["form"]) or 0)
    assert cli.main(["demo", "--format", "avro"]) == 0
    assert cli.main(["demo"]) == 0
    assert asked == ["avro", "json"]
    with pytest.raises(SystemExit):
        cli.main(["demo", "--format", "xml"])
    assert "invalid choice: 'xml'" in capsys.readouterr().err
