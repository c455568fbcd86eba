"""Several connectors in one configuration: the list, its parts, its secrets, and its mistakes."""

import json
import pickle
import re
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemark.cli import presentation
from lakemark.ops import settings_record
from lakemark.settings.config import Config, ConnectorConfig, leaves, load, load_with_origins
from tests.unit.settings.test_config import problems, write

__all__ = ["write"]

ROOT = Path(__file__).parents[3]
TWO = """\
name: both
kafka: {bootstrap_servers: localhost:9092}
source:
  watch_interval: 5s
  connectors:
    - connect: {url: http://localhost:8083, connector: shop}
      tables: [public.customers]
      database: {url: postgresql://u@h/shop, password: hush-4hush}
    - connect: {url: http://localhost:8083, connector: crm, username: u, password: mums-0word}
      converter: {secret.of.registry: hush-5hush}
      database: {url: 'mysql://u:p%40ss-w0rd@h', password: '${file:crm}'}
lake: {path: ./lake}
checkpoint: ./checkpoint
"""
SECRETS = {"hush-4hush", "mums-0word", "hush-5hush", "p%40ss-w0rd", "p@ss-w0rd", "hush-file"}


@pytest.fixture(autouse=True)
def secret(tmp_path):
    """The file of the password that the configuration names."""
    (tmp_path / "crm").write_text("hush-file\n")


# --- the list and its parts -------------------------------------------------------------------


def test_a_part_is_a_pipeline_with_that_connector_alone(write):
    config = load(write(TWO), {})
    assert config.several
    assert config.database is None
    shop, crm = config.parts
    assert config.parts is config.parts
    assert [part.source.connect.connector for part in config.parts] == ["shop", "crm"]
    assert shop.source.tables == ["public.customers"]
    assert crm.source.converter_options() == {"secret.of.registry": "hush-5hush"}
    assert (shop.database.url, crm.database.url) == (
        "postgresql://u@h/shop",
        "mysql://u:p%40ss-w0rd@h",
    )
    for part in config.parts:
        assert not part.several
        assert part.parts == (part,)
        assert part.source.watch_interval == config.source.watch_interval
        assert all(getattr(part, n) is getattr(config, n) for n in ("kafka", "lake", "stream"))
    assert config.connect_urls() == ("http://localhost:8083",)


def test_the_form_with_one_connector_is_its_only_part(write):
    one = re.sub(r"  watch_interval.*?(?=lake:)", "  connect: {url: http://h, connector: c}\n", TWO,
                 flags=re.DOTALL)  # fmt: skip
    config = load(write(one), {})
    assert not config.several
    assert config.parts[0] is config
    assert config == load(write(one), {})
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_list_of_one_is_a_list(write):
    text = TWO[: TWO.index("    - connect: {url: http://localhost:8083, connector: crm")]
    config = load(write(text + "lake: {path: ./lake}\ncheckpoint: ./checkpoint\n"), {})
    assert config.several
    assert len(config.parts) == 1


NAMES = st.text("abcdefghij", min_size=1, max_size=6)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"connect": st.fixed_dictionaries({
            "url": st.sampled_from(["http://a:8083", "http://b:8083/"]), "connector": NAMES})},
        optional={
            "tables": st.lists(NAMES, max_size=3),
            "topics": NAMES,
            "converter": st.dictionaries(NAMES, NAMES, max_size=2),
            "database": st.fixed_dictionaries(
                {"url": st.sampled_from(["postgresql://h/d", "mysql://h"])},
                optional={"password": NAMES.map("secret-".__add__), "connect_timeout": st.just("3s")},
            ),
        },
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda entry: (entry["connect"]["url"].rstrip("/"), entry["connect"]["connector"]),
)  # fmt: skip
REST = {
    "name": "both",
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "lake": {"path": "/lake"},
    "checkpoint": "/checkpoint",
}


def all_of(config: Config) -> dict:
    return {name: getattr(config, name) for name in Config.model_fields}


@given(entries=ENTRIES)
def test_each_part_is_what_its_entry_alone_would_be(entries):
    config = Config.model_validate({**REST, "source": {"connectors": entries}})
    for part, entry in zip(config.parts, entries, strict=True):
        source = {name: entry[name] for name in entry if name != "database"}
        more = {"database": entry["database"]} if "database" in entry else {}
        alone = Config.model_validate({**REST, **more, "source": source})
        assert all_of(part) == all_of(alone)
        assert {(*path, value) for path, value, _ in leaves(part)} == {
            (*path, value) for path, value, _ in leaves(alone)
        }


@given(entries=ENTRIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_entries_from_the_environment_are_those_of_a_file(entries, tmp_path):
    rest = tmp_path / "rest.yaml"
    rest.write_text(yaml.safe_dump(REST))
    whole = tmp_path / "whole.yaml"
    whole.write_text(yaml.safe_dump({**REST, "source": {"connectors": entries}}))
    environ = {}
    for number, entry in enumerate(entries):
        start = f"LAKEMARK_SOURCE__CONNECTORS__{number}"
        for name in ("connect", "database"):
            for inner, value in entry.get(name, {}).items():
                environ[f"{start}__{name.upper()}__{inner.upper()}"] = value
        for name in ("tables", "converter"):
            if name in entry:
                environ[f"{start}__{name.upper()}"] = json.dumps(entry[name])
        if "topics" in entry:
            environ[f"{start}__TOPICS"] = entry["topics"]
    assert load(rest, environ) == load(whole, {})
    listed = {"LAKEMARK_SOURCE__CONNECTORS": json.dumps(entries)}
    assert load(rest, listed) == load(whole, {})


def test_a_variable_sets_one_thing_of_one_entry(write):
    name = "LAKEMARK_SOURCE__CONNECTORS__1__DATABASE__PASSWORD"
    loaded = load_with_origins(write(TWO), {name: "hush-env"})
    assert loaded.config.parts[1].database.password.get_secret_value() == "hush-env"
    assert loaded.config.parts[1].database.url == "mysql://u:p%40ss-w0rd@h"
    assert loaded.config.parts[0].database.password.get_secret_value() == "hush-4hush"
    assert loaded.origins["source.connectors[1].database.password"] == name
    assert loaded.origins["source.connectors[0].database.password"] == "lakemark.yaml:8"


def test_more_entries_than_ten_are_taken_by_their_numbers(write):
    environ = {
        f"LAKEMARK_SOURCE__CONNECTORS__{n}__CONNECT": json.dumps(
            {"url": "http://h", "connector": f"c{n}"}
        )
        for n in range(12)
    }
    text = re.sub(r"  connectors:.*?(?=lake:)", "", TWO, flags=re.DOTALL)
    config = load(write(text), environ)
    assert [p.source.connect.connector for p in config.parts] == [f"c{n}" for n in range(12)]


def test_an_entry_without_those_before_it_is_a_mistake(write):
    found = problems(write(TWO), {"LAKEMARK_SOURCE__CONNECTORS__3__TABLES": "a.b"})
    assert found["source.connectors[3]"].hint == "number the entries from 0 on"
    assert "LAKEMARK_SOURCE__CONNECTORS__3__TABLES" in found["source.connectors[3]"].message


# --- secrets ----------------------------------------------------------------------------------


def test_secrets_of_all_entries_are_hidden_by_the_whole_and_by_each_part(write, tmp_path):
    config = load(write(TWO), {})
    assert "hush" not in repr(config)
    assert config.secrets() == SECRETS
    assert config.secret_files() == (tmp_path / "crm",)
    for one in (config, *config.parts, *pickle.loads(pickle.dumps(config.parts))):
        assert one.secrets() == SECRETS
        masked = one.masks().foreign(" ".join(SECRETS))
        assert not any(secret in masked for secret in SECRETS)
    assert [part.secret_files() for part in config.parts] == [(), (tmp_path / "crm",)]


def test_it_survives_pickling_and_its_parts_come_along(write):
    config = load(write(TWO), {})
    again = pickle.loads(pickle.dumps(config))
    assert config.parts
    assert again == config
    assert again.parts == config.parts
    assert pickle.loads(pickle.dumps(config)) == again


def test_every_entry_is_shown_with_its_place_and_no_secret(write, capsys):
    loaded = load_with_origins(write(TWO), {})
    presentation.show_settings(presentation.Console(), loaded, as_json=True)
    shown = capsys.readouterr().out
    assert not any(secret in shown for secret in SECRETS)
    rows = {row["setting"]: row for row in json.loads(shown)}
    assert rows["source.connectors[0].tables"] == {
        "setting": "source.connectors[0].tables",
        "value": "public.customers",
        "from": "lakemark.yaml:7",
    }
    assert rows["source.connectors[1].connect.connector"]["value"] == "crm"
    assert rows["source.connectors[1].database.password"]["value"] == "•••"


def test_the_summary_names_each_connector(write, capsys):
    presentation.show_summary(presentation.Console(), load(write(TWO), {}))
    shown = capsys.readouterr().out
    assert "reads   public.customers of the connector shop" in shown
    assert "reads   all that the connector captures of the connector crm" in shown


# --- mistakes ---------------------------------------------------------------------------------


def test_what_is_of_one_connector_cannot_stand_beside_the_list(write, tmp_path):
    (tmp_path / "c.json").write_text("{}")
    beside = """\
  connect: {url: http://localhost:8083, connector: other}
  connector_file: c.json
  tables: [a.b]
  topics: x
  schema_file: c.json
  converter: {a: b}
database: {url: postgresql://h/d}
lake:
"""
    lake = "  path: ./lake\n  tables: {public.orders: {deletes: soft}}\n"
    found = problems(write(TWO.replace("lake: {path: ./lake}\n", beside + lake)))
    assert {path: mistake.line for path, mistake in found.items()} == {
        "source.connect": 12,
        "source.connector_file": 13,
        "source.tables": 14,
        "source.topics": 15,
        "source.schema_file": 16,
        "source.converter": 17,
        "database": 18,
        "lake.tables.public.orders": 21,
    }
    assert "set it for each connector there" in found["database"].message
    assert "shop.public.orders" in found["lake.tables.public.orders"].message


def test_a_table_of_the_lake_has_its_connectors_prefix(write):
    tables = "{path: ./lake, tables: {shop.public.orders: {deletes: soft}, '\"a.b\".c.d': {}}}"
    config = load(write(TWO.replace("{path: ./lake}", tables)), {})
    assert config.lake.deletes_of("shop.public.orders") == "soft"
    assert config.lake.deletes_of("crm.public.orders") == "hard"


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "words"),
    [
        ("connector: crm", "connector: shop", "source.connectors[1]", 9,
         "the same connector as source.connectors[0]"),
        ("8083, connector: crm", "8083/, connector: shop", "source.connectors[1]", 9,
         "the same connector"),
        ("connector: crm", "conector: crm", "source.connectors[1].connect.conector", 9,
         "is not a setting"),
        ("connect: {url: http://localhost:8083, connector: shop}", "topics: x",
         "source.connectors[0]", 6, "exactly one of connect and connector_file is needed, neither"),
        ("tables: [public.customers]", "table: [x]", "source.connectors[0].table", 7,
         "is not a setting"),
        ("tables: [public.customers]", "tables: ['(']", "source.connectors[0].tables[0]", 7, "("),
        ("postgresql://u@h/shop", "u:hush-9hush@h/d", "source.connectors[0].database.url", 8,
         "SCHEME://"),
        ("password: hush-4hush", "password: [hush-4hush]",
         "source.connectors[0].database.password", 8, "string"),
        ("${file:crm}", "${file:nope}", "source.connectors[1].database.password", 11, "nope"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_entry_has_its_line(write, old, new, path, line, words):
    assert TWO.count(old) >= 1
    found = problems(write(TWO.replace(old, new)))
    assert (found[path].line, words in found[path].message) == (line, True), found
    assert "hush-" not in " ".join(p.message + p.hint for p in found.values())


def test_a_misspelt_setting_of_an_entry_is_answered_with_the_nearest(write):
    found = problems(write(TWO.replace("tables: [public.customers]", "table: [x]")))
    assert found["source.connectors[0].table"].hint == ("did you mean source.connectors[0].tables?")


def test_the_same_file_twice_is_the_same_connector(write, tmp_path):
    (tmp_path / "c.json").write_text("{}")
    listed = "connectors: [{connector_file: c.json}, {connector_file: ./c.json}]\n"
    text = re.sub(r"connectors:.*?(?=lake:)", listed, TWO, flags=re.DOTALL)
    assert "the same connector" in problems(write(text))["source.connectors[1]"].message


@pytest.mark.parametrize("listed", ["[]", "", "{a: 1}", "[1]"])
def test_a_list_without_connectors_is_a_mistake(write, listed):
    text = re.sub(r"connectors:.*?(?=lake:)", f"connectors: {listed}\n", TWO, flags=re.DOTALL)
    (found,) = problems(write(text))
    assert found in {"source", "source.connectors", "source.connectors[0]"}


def test_an_empty_list_does_not_hide_that_no_connector_is_named(write):
    text = re.sub(r"  connectors:.*?(?=lake:)", "", TWO, flags=re.DOTALL)
    assert "source.connectors" in problems(write(text))["source"].message


def test_what_should_be_known_is_said_of_the_entry(write, tmp_path):
    (tmp_path / "c.json").write_text("{}")
    text = TWO.replace("connect: {url: http://localhost:8083, connector: shop}",
                       "connector_file: c.json") + "output: {topic_prefix: clean}\n"  # fmt: skip
    warnings = {p.path: p for p in load_with_origins(write(text), {}).warnings}
    assert {path: warning.line for path, warning in warnings.items()} == {"source.connectors[0]": 6}
    one = re.sub(r"      database:.*\n", "", TWO, count=1) + "snapshot: {chunk_rows: 5}\n"
    assert load_with_origins(write(one), {}).warnings == []
    none = re.sub(r"      database:.*\n", "", TWO) + "snapshot: {chunk_rows: 5}\n"
    assert [p.path for p in load_with_origins(write(none), {}).warnings] == ["snapshot"]


# --- what a change takes ----------------------------------------------------------------------


def takes(before: Config, now: Config) -> dict[str, str]:
    found = settings_record.changes(settings_record.masked(before), now)
    return {change.setting: change.takes.value for change in found}


def several(*entries: dict) -> Config:
    return Config.model_validate({**REST, "source": {"connectors": [*entries]}})


SHOP = {"connect": {"url": "http://a:8083", "connector": "shop"}}
CRM = {"connect": {"url": "http://a:8083", "connector": "crm"}}
CRM_THERE = {"connect": {"url": "http://b:8083", "connector": "crm"}}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([SHOP, CRM], [CRM, SHOP], {"source.connectors": "re-snapshot"}),
        ([SHOP], [CRM, SHOP], {"source.connectors": "re-snapshot"}),
        ([SHOP, CRM], [CRM], {"source.connectors": "re-snapshot"}),
        ([SHOP, CRM], [SHOP, {**CRM, "tables": ["a.b"]}],
         {"source.connectors[crm].tables": "re-snapshot"}),
        ([SHOP], [{**SHOP, "database": {"url": "mysql://h"}}],
         {"source.connectors[shop].database.url": "restart",
          "source.connectors[shop].database.connect_timeout": "restart"}),
        ([CRM, CRM_THERE], [CRM, {**CRM_THERE, "topics": "x"}],
         {"source.connectors[crm@http://b:8083].topics": "re-snapshot"}),
    ],
)  # fmt: skip
def test_what_a_change_of_the_list_takes(before, now, expected):
    found = takes(several(*before), several(*now))
    assert {name: found.get(name) for name in expected} == expected
    assert {n for n in found if not n.endswith(("database", "password"))} == {*expected}


def test_from_one_form_to_the_other_leads_a_new_checkpoint():
    one = Config.model_validate({**REST, "source": SHOP})
    for before, now in ((one, several(SHOP)), (several(SHOP), one)):
        found = takes(before, now)
        assert found["source.connect.connector"] == "new checkpoint"
        assert "source.connectors" in found


# --- the documents ----------------------------------------------------------------------------


def test_the_examples_work(write, tmp_path):
    (tmp_path / "secrets").mkdir()
    for name in ("postgres", "mariadb"):
        (tmp_path / "secrets" / name).write_text("x")
    page = (ROOT / "docs" / "settings.md").read_text()
    part = page[page.index("## Several connectors") : page.index("## A schema file")]
    block = yaml.safe_load(
        re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)[0].replace("${", "$${")
    )
    config = Config.model_validate({**REST, **block}, context={"base": tmp_path})
    assert [p.source.connect.connector for p in config.parts] == ["shop", "crm"]
    example = (ROOT / "lakemark.example.yaml").read_text()
    listed = re.search(r"  # (connectors:)[^\n]*\n((?:  #   .*\n)+)", example)
    assert listed is not None
    entries = textwrap.dedent(listed[2].replace("  # ", "    "))
    assert len([ConnectorConfig.model_validate(e) for e in yaml.safe_load(entries)]) == 2
