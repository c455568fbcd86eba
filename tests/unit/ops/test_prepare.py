"""What `lakemark prepare` writes: the doctor's own rules, done; nothing secret; the same each time."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors import connector as connectors
from lakemark.connectors.preparation import ToPrepare, names_in, tables_in
from lakemark.connectors.registry import DATABASES, database_kind, traits_of
from lakemark.model.findings import Verdict, warning, wrong
from lakemark.ops.doctor.checks_connector import of_settings
from lakemark.ops.prepare import prepare as preparing
from lakemark.ops.prepare.comments import comment
from lakemark.ops.prepare.prepare import CONNECTOR, REASONS, RIGHTS, SCRIPT, config_of, prepare
from lakemark.ops.prepare.prepared_settings import is_secret, prepared
from lakemark.settings.layers import SetTo
from tests.kit.command_line import invoke
from tests.kit.connector_settings import JSON, config
from tests.kit.hostile_names import HOSTILE
from tests.kit.page_shell import lines, with_names

SECRET = "hush-4hush"
POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
MARIADB = "io.debezium.connector.mariadb.MariaDbConnector"
MYSQL = "io.debezium.connector.mysql.MySqlConnector"
URLS = {
    POSTGRES: "postgresql://lakemark@h/d",
    MARIADB: "mariadb://lakemark@h/d",
    MYSQL: "mysql://lakemark@h/d",
}
BARE = {
    "topic.prefix": "shop",
    "database.user": "debezium",
    "database.password": SECRET,
    "table.include.list": r"public.orders,public\.customers",
}
VALUES = {
    "skipped.operations": ("none", "t", "c,t", "u,d"),
    "snapshot.mode": ("initial", "no_data", "initial_only", "always"),
    "snapshot.locking.mode": ("none", "minimal"),
    "heartbeat.interval.ms": ("0", "500"),
    "decimal.handling.mode": ("double", "string", "precise"),
    "time.precision.mode": ("connect", "adaptive_time_microseconds", "isostring"),
    "errors.tolerance": ("all", "none"),
    "event.processing.failure.handling.mode": ("skip", "fail"),
    "inconsistent.schema.handling.mode": ("warn", "fail"),
    "field.name.adjustment.mode": ("avro", "none"),
    "slot.drop.on.stop": ("true", "false"),
    "plugin.name": ("decoderbufs", "pgoutput"),
    "publication.autocreate.mode": ("filtered", "no_tables", "disabled"),
    "provide.transaction.metadata": ("false", "true"),
    "include.schema.changes": ("false", "true"),
    "signal.enabled.channels": ("kafka", "source,kafka"),
    "key.converter": (JSON, "io.confluent.connect.avro.AvroConverter"),
    "value.converter": (JSON,),
    "value.converter.replace.null.with.default": ("true", "false"),
    "topic.creation.default.cleanup.policy": ("compact", "delete"),
    "max.batch.size": ("4096",),
}
some_settings = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}
)


def ours(java_class: str):
    return config(database__url=URLS[java_class])


def file_of(folder: Path, java_class: str, **more: str) -> Path:
    file = folder / "shop.json"
    file.write_text(json.dumps({"name": "shop", "config": {**settings_of(java_class), **more}}))
    return file


def settings_of(java_class: str) -> dict[str, str]:
    return {"connector.class": java_class, **BARE}


def written(folder: Path, java_class: str, **more: str) -> dict[str, str]:
    made = config_of(file_of(folder, java_class, **more), ours(java_class))
    return dict(prepare(made, asks=False).files)


each = pytest.mark.parametrize("java_class", [*DATABASES])


# --- the connector's settings ----------------------------------------------------------------


@each
@given(more=some_settings)
def test_what_the_doctor_says_of_a_setting_is_done_and_all_else_stays(java_class, more):
    settings = {**settings_of(java_class), **more}
    found = prepared(settings, ours(java_class))
    problems = connectors.parse(found.settings, config=ours(java_class)).problems
    after = of_settings(found.settings, problems, traits_of(found.settings))
    assert [finding for finding in after if isinstance(finding.mend, SetTo)] == []
    changed = {one.name for one in found.changed}
    assert {n: v for n, v in settings.items() if found.settings.get(n) != v}.keys() <= changed
    assert found.settings.keys() == settings.keys() | changed
    assert all(one.why for one in found.changed)
    again = prepared(found.settings, ours(java_class))
    assert (again.settings, again.changed) == (found.settings, ())


@each
def test_a_connector_without_a_sound_setting_has_none_left_to_mend(java_class, tmp_path):
    made = config_of(file_of(tmp_path, java_class), ours(java_class))
    assert prepare(made, asks=False).left == ()


def test_what_no_value_mends_is_left_to_the_reader(tmp_path):
    more = {"transforms": "flat", "transforms.flat.type": "x.ExtractNewDocumentState"}
    made = config_of(file_of(tmp_path, POSTGRES, **more), ours(POSTGRES))
    (left,) = prepare(made, asks=False).left
    assert left.verdict is Verdict.ERROR
    assert "removes the envelope" in left.reason
    assert "removes the envelope" in prepare(made, asks=False).files[REASONS]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("database.password", True),
        ("schema.history.internal.consumer.sasl.jaas.config", True),
        ("producer.override.sasl.mechanism", False),
        ("value.converter.basic.auth.user.info", True),
        ("message.key.columns", False),
        ("database.user", False),
    ],
)
def test_secrets_are_known_by_their_names(name, secret):
    assert is_secret(name) is secret


@each
def test_no_file_has_a_secret_and_each_has_the_same_bytes_again(java_class, tmp_path):
    jaas = {"producer.override.sasl.jaas.config": f'x required password="{SECRET}";'}
    first = written(tmp_path, java_class, **jaas)
    assert SECRET not in "".join(first.values())
    settings = json.loads(first[CONNECTOR])
    file = "/etc/kafka-connect/connector.properties"
    assert settings["database.password"] == f"${{file:{file}:database.password}}"
    assert first == written(tmp_path, java_class, **jaas)


def test_a_placeholder_stays(tmp_path):
    kept = "${vault:shop:password}"
    made = json.loads(written(tmp_path, POSTGRES, **{"database.password": kept})[CONNECTOR])
    assert made["database.password"] == kept


# --- the tables ------------------------------------------------------------------------------


def test_names_of_a_list():
    assert names_in(r"shop, a\.b,a-b") == ("shop", "a.b", "a-b")
    assert names_in("") is names_in("shop.*") is names_in("a|b") is None
    assert tables_in(r"public.a,public\.b,s\-1.c$") is None
    assert tables_in(r"public.a,public\.b,s\-1.c\$") == ("public.a", "public.b", "s-1.c$")
    assert tables_in("") is tables_in(r"a\.b\.c") is tables_in("public.*") is tables_in("a") is None


def prepared_for(java_class: str, **more) -> ToPrepare:
    known = {
        "settings": {**settings_of(java_class), "signal.data.collection": "s.signals"},
        "bootstrap": "b:1",
        "user": "lakemark",
        "tables": ("s.a", "s.b"),
        "chosen": ("s.a",),
        "containers": None,
        "reads_rows": False,
        **more,
    }
    return ToPrepare(**known)


def sql_of(java_class: str, **more) -> list[str]:
    script = database_kind({"connector.class": java_class}).script(prepared_for(java_class, **more))
    assert all(statement.why for statement in script.statements)
    return [statement.sql for statement in script.statements]


@each
@pytest.mark.parametrize("reads_rows", [False, True])
def test_rights_are_those_to_the_tables_and_no_others(java_class, reads_rows):
    granted = [sql for sql in sql_of(java_class, reads_rows=reads_rows) if "GRANT SELECT" in sql]
    of_lakemark = [sql for sql in granted if "lakemark" in sql]
    assert len(of_lakemark) == 1, "it reads what it has chosen"
    of_connector = [sql for sql in granted if "debezium" in sql]
    expected = {POSTGRES: 2 if reads_rows else 0}.get(java_class, 2)  # MariaDB's reads their form
    assert len(of_connector) == expected
    assert not any("*.*" in sql for sql in granted)


def test_tables_that_nobody_knows_are_taken_with_what_holds_them():
    unknown = {"tables": None, "chosen": None}
    all_of = "\n".join(sql_of(POSTGRES, **unknown, containers=("s",)))
    assert 'GRANT SELECT ON ALL TABLES IN SCHEMA "s" TO "lakemark"' in all_of
    assert 'CREATE PUBLICATION "dbz_publication" FOR TABLES IN SCHEMA "s"' in all_of
    assert "ADD TABLE" not in all_of, "the signal table is in that schema"
    everything = "\n".join(sql_of(POSTGRES, **unknown))
    assert "FOR ALL TABLES" in everything
    assert 'pg_read_all_data TO "lakemark"' in everything
    maria = "\n".join(sql_of(MARIADB, **unknown, containers=("a_b",)))
    assert r"GRANT SELECT ON `a\_b`.* TO `lakemark`@`%`" in maria
    assert "GRANT SELECT ON *.* TO" in "\n".join(sql_of(MARIADB, **unknown))


def test_a_read_of_mysql_needs_two_rights_more():
    asked = {java_class: "\n".join(sql_of(java_class)) for java_class in (MYSQL, MARIADB)}
    right = "GRANT REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO `lakemark`@`%`;"
    assert {java_class: right in sql for java_class, sql in asked.items()} == {
        MYSQL: True,
        MARIADB: False,
    }
    assert "debezium_signal" not in asked[MYSQL], "nothing is written into the database"


@each
def test_names_are_quoted_and_comments_keep_to_their_lines(java_class):
    names = tuple(f"s.{name.removeprefix('public.')}" for name in HOSTILE)
    names = (*names, "s.a`b", "s.a'b", 's.a"b')
    findings = [wrong("key", name, f"{name} has none", f"ALTER {name};") for name in names]
    made = prepared_for(java_class, tables=names, chosen=names, findings=findings)
    script = database_kind({"connector.class": java_class}).script(made)
    quote = '"' if java_class == POSTGRES else "`"
    said = "\n".join(statement.sql for statement in script.statements)
    for name in names:
        table = name.removeprefix("s.")
        assert f"{quote}{table.replace(quote, quote * 2)}{quote}" in said
    for statement in script.statements:
        assert all(line.startswith("-- ") for line in comment("--", statement.why).splitlines())


def test_the_doctors_findings_about_tables_are_run_or_left_to_the_reader():
    full = 'ALTER TABLE "s"."a" REPLICA IDENTITY FULL;'
    findings = [
        warning("replica identity", "s.a", "large values arrive as null", full),
        wrong("key", "s.b", "has no key", "ALTER TABLE s.b ADD PRIMARY KEY (<columns>);"),
        wrong("select", "s.a", "may not be read", "GRANT SELECT ON s.a TO x;"),
        wrong("select", "s.b", "rows may be hidden", 'ALTER ROLE "lakemark" BYPASSRLS;'),
    ]
    made = sql_of(POSTGRES, findings=findings)
    assert made[-3:] == [full, "", 'ALTER ROLE "lakemark" BYPASSRLS;']


# --- the rights in Kafka ---------------------------------------------------------------------


def rights(script: str, folder: Path, **names: str) -> set[tuple[str, ...]]:
    """Run a script with a tool that only says with what it was called; return each right once."""
    tool = folder / "kafka-acls.sh"
    tool.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\necho ---\n')
    tool.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **names}
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    found = set()
    for call in done.stdout.split("---\n")[:-1]:
        words = call.splitlines()
        given = [(name, words[at + 1]) for at, name in enumerate(words[:-1]) if name[:2] == "--"]
        said = dict(given)
        for name, operation in given:
            if name == "--operation":
                (kind,) = {"--topic", "--group", "--transactional-id"} & said.keys() or {
                    "--cluster"
                }
                pattern = said.get("--resource-pattern-type", "literal")
                user = said["--allow-principal"]
                found.add((user, operation, kind, said.get(kind, ""), pattern))
    return found


def test_lakemarks_rights_are_those_of_the_pages_with_which_a_pipeline_runs(tmp_path):
    """`tests/faults/test_passwords.py` has a pipeline with those, and with no others."""
    pages = [lines(page, "kafka-acls.sh") for page in ("docs/security.md", "docs/outputs.md")]
    told = rights(with_names("\n".join(pages), {"localhost:9092": "b:1"}), tmp_path)
    made = config(output={"topic_prefix": "shop.clean"})
    script = prepare(config_of(file_of(tmp_path, POSTGRES), made), asks=False).files[RIGHTS]
    found = rights(script, tmp_path)
    assert {right for right in found if right[0] == "User:lakemark"} == told
    others = {right[3] for right in found if right[0] == "User:connect"}
    assert others == {"shop.", "__debezium-heartbeat.shop"}


def test_the_connector_of_mariadb_has_its_history_too(tmp_path):
    script = written(tmp_path, MARIADB)[RIGHTS]
    found = rights(script, tmp_path, CONNECTOR="User:c", LAKEMARK="User:l")
    read = {("User:l", one, "--topic", "shop", "literal") for one in ("Describe", "Read")}
    assert read <= found, "there the connector says that it begins"
    of_connector = {(kind, name) for user, _, kind, name, _ in found if user == "User:c"}
    assert of_connector == {
        ("--topic", "shop."),
        ("--topic", "shop"),
        ("--topic", "__debezium-heartbeat.shop"),
        ("--topic", "shop.schema-history"),
        ("--group", "shop-schemahistory"),
        ("--cluster", ""),
    }
    assert {user for user, *_ in found} == {"User:c", "User:l"}


def test_a_name_of_a_topic_is_one_word_of_the_shell(tmp_path):
    odd = {"signal.enabled.channels": "source,kafka", "signal.kafka.topic": "a'b; rm -rf $HOME `x`"}
    script = written(tmp_path, POSTGRES, **odd)[RIGHTS]
    assert ("User:connect", "Read", "--topic", odd["signal.kafka.topic"], "literal") in rights(
        script, tmp_path
    )
    for line in script.splitlines():
        if line.startswith("$ACLS"):
            assert ";" not in shlex.split(line, posix=True)


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEMARK_CONFIG", raising=False)
    return tmp_path


@each
def test_a_connectors_file_is_enough(java_class, folder):
    file_of(folder, java_class)
    printed = invoke("prepare", "shop.json")
    assert printed.exit_code == 0, printed.stderr
    assert "The catalog was not read" in printed.stderr
    assert re.findall(r"^=== (\S+)$", printed.stdout, re.MULTILINE) == [
        *(SCRIPT, RIGHTS, CONNECTOR, REASONS)
    ]
    assert invoke("prepare", "shop.json", "--to", "out").exit_code == 0
    for name in (SCRIPT, RIGHTS, CONNECTOR, REASONS):
        assert (folder / "out" / name).read_text().strip() in printed.stdout
    assert invoke("prepare", "out/connector.json", "--to", "again").exit_code == 0
    assert (folder / "again" / CONNECTOR).read_text() == (folder / "out" / CONNECTOR).read_text()


def test_no_file_is_overwritten_unless_that_is_asked_for(folder):
    file_of(folder, POSTGRES)
    (folder / "out").mkdir()
    mine = folder / "out" / SCRIPT
    mine.write_text("mine")
    refused = invoke("prepare", "shop.json", "--to", "out")
    assert refused.exit_code == 2
    assert "database.sql already: nothing was written. --force overwrites" in refused.stderr
    assert [path.name for path in (folder / "out").iterdir()] == [SCRIPT]
    assert mine.read_text() == "mine"
    assert invoke("prepare", "shop.json", "--to", "out", "--force").exit_code == 0
    assert mine.read_text() != "mine"


def test_what_cannot_be_mended_fails_and_is_said(folder):
    flat = {"transforms": "flat", "transforms.flat.type": "x.ExtractNewDocumentState"}
    file_of(folder, POSTGRES, **flat)
    done = invoke("prepare", "shop.json", "--to", "out")
    assert done.exit_code == 1
    assert "removes the envelope" in done.stderr
    assert (folder / "out" / SCRIPT).exists()


@pytest.mark.parametrize("java_class", ["io.debezium.connector.oracle.OracleConnector", ""])
def test_another_database_is_refused(folder, java_class):
    file_of(folder, java_class or POSTGRES, **{"connector.class": java_class})
    done = invoke("prepare", "shop.json")
    assert done.exit_code == 3
    assert "is not supported yet" in done.stderr


def test_a_database_that_does_not_answer_is_said_and_done_without(folder, monkeypatch):
    monkeypatch.setattr(preparing, "DEADLINE_S", 20.0)
    file_of(folder, POSTGRES)
    (folder / "lakemark.yaml").write_text(
        "name: shop\nkafka: {bootstrap_servers: b:1}\nsource: {connector_file: shop.json}\n"
        "database: {url: 'postgresql://reader@127.0.0.1:1/shop', password: hush-4hush}\n"
        "lake: {path: ./lake}\ncheckpoint: ./checkpoint\n"
    )
    done = invoke("prepare", "--to", "out")
    assert done.exit_code == 0, done.stderr
    assert "The catalog was not read" in done.stderr
    assert 'GRANT SELECT ON "public"."orders" TO "reader"' in (folder / "out" / SCRIPT).read_text()
