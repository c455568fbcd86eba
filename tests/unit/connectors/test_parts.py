"""The connectors of a pipeline: each as if alone, and spoken of by its name where there are several."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.cli.check import check
from lakemark.connectors.parts import PipelinePart, parts_of, shared_prefixes
from lakemark.errors import DependencyError, LakemarkError
from lakemark.model.findings import warning
from lakemark.model.wanted import Wanted
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake, SetTo
from tests.kit.connector_settings import POSTGRES, config

MARIADB = {
    **POSTGRES,
    "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
    "provide.transaction.metadata": "true",
}
texts = st.text("ab. source:connect", max_size=40)


@pytest.fixture
def listed(tmp_path):
    """A configuration of two connectors that are known from their files."""

    def _listed(shop=(), crm=(), **changes):
        for name, settings in (("shop", {**POSTGRES, **dict(shop)}),
                               ("crm", {**MARIADB, "topic.prefix": "crm", **dict(crm)})):  # fmt: skip
            (tmp_path / f"{name}.json").write_text(json.dumps(settings))
        entries = [
            {"connector_file": str(tmp_path / "shop.json"),
             "database": {"url": "postgresql://u@h/d"}, "tables": ["public.*"]},
            {"connector_file": str(tmp_path / "crm.json"), "database": {"url": "mariadb://u@h"}},
        ]  # fmt: skip
        entries[1] |= changes
        return config(source={"connectors": entries}, database=None)

    return _listed


def test_of_one_connector_everything_is_said_as_it_is():
    (part,) = parts_of(config())
    problem, error = Mistake("source.tables", "source.tables is x"), DependencyError("away")
    found = warning("select", "public.a", "x", "lakemark snapshot start public.a")
    assert part == PipelinePart(config())
    assert part.mistake(problem) is problem
    assert part.error(error) is error
    assert part.finding(found, "shop") is found


def test_each_of_several_is_read_with_its_qualifier(listed):
    shop, crm = parts_of(listed())
    assert (shop.name, shop.section) == ("shop.json", "source.connectors[0]")
    connectors = [part.read() for part in (shop, crm)]
    assert [one.qualifier for one in connectors] == ["shop", "crm"]
    assert "shop.public.orders" in connectors[0].tables
    assert "shop.public.orders" not in connectors[1].tables
    assert [one.problems for one in connectors] == [(), ()]


def test_a_connector_is_read_and_its_problems_name_it(listed):
    part = parts_of(listed(crm={"skipped.operations": "t"}, database={"url": "mysql://u@h"}))[1]
    found = {problem.path: problem for problem in part.read().problems}
    assert found.keys() == {
        "connector crm.json: source.connectors[1].database.url",
        "connector crm.json: skipped.operations",
    }
    mend = found["connector crm.json: skipped.operations"].hint
    assert isinstance(mend, SetTo), "prepare does what it says"


def test_settings_are_named_as_they_stand_in_the_entry(listed):
    part = parts_of(listed())[1]
    said = part.mistake(Mistake("source.topics", "source.topics and source.watch_interval", "source.connect.url"))  # fmt: skip
    assert said.path == "connector crm.json: source.connectors[1].topics"
    assert said.message == "source.connectors[1].topics and source.watch_interval"
    assert said.hint == "source.connectors[1].connect.url"


@given(message=texts, code=st.sampled_from(["a-code", "b"]), hint=texts)
def test_an_error_stays_what_it_is_and_names_the_connector(message, code, hint):
    part = PipelinePart(config(), "crm", "source.connectors[1]")
    refused = part.error(LoginRefused(Mistake("source.connect", message, hint), code=code))
    assert (type(refused), refused.code, refused.retried) == (LoginRefused, code, True)
    assert refused.problems[0].path == "connector crm: source.connectors[1].connect"
    invalid = part.error(InvalidConfig([Mistake("source", message), Mistake("x", message)]))
    assert [p.path for p in invalid.problems] == ["connector crm: source", "connector crm: x"]
    for kind in (LakemarkError, DependencyError):
        away = part.error(kind(message, code=code, hint=hint))
        assert (type(away), away.code, away.retried) == (kind, code, kind.retried)
        assert away.message.startswith("connector crm: ")


def test_commands_of_a_finding_have_the_names_of_the_pipeline(listed):
    part = parts_of(listed())[0]
    of_table = warning("x", "public.a", "of public.a", "mend it; lakemark snapshot start public.a")
    said = part.finding(of_table, "shop")
    assert said == replace(
        of_table, connector="shop.json", mend="mend it; lakemark snapshot start shop.public.a"
    )
    of_all = warning("slot", "s", "it is gone", "lakemark snapshot start '.*'")
    assert part.finding(of_all, "a.b").mend == r"lakemark snapshot start 'a\.b\..*'"
    assert part.finding(of_all).mend == of_all.mend, "nobody knows the qualifier"


def test_connectors_with_one_prefix_cannot_be_told_apart(listed):
    parts = parts_of(listed(crm={"topic.prefix": "shop"}))
    known = [part.read() for part in parts]
    ((part, mistake),) = shared_prefixes(parts, known)
    assert part.name == "crm.json"
    assert mistake.message == "shop is that of the connector shop.json, too"
    assert [*shared_prefixes(parts, [known[0], None])] == []


def test_what_any_connector_wants_is_wanted(listed):
    wanted = Wanted.by_any([part.read().wanted for part in parts_of(listed())])
    for name, topic, is_wanted in (
        ("shop.public.a", "shop.public.a", True),
        ("crm.db.a", "crm.db.a", True),
        ("shop.audit.a", "shop.audit.a", False),
        ("other.public.a", "other.public.a", False),
    ):
        assert wanted.table(name, [topic]) is is_wanted
        assert (name in wanted.tables) is is_wanted
    assert wanted.captured("shop.audit.a"), "the connector lets it through"
    assert not wanted.captured("other.public.a")


# --- lakemark validate ------------------------------------------------------------------------


def paths(found: list[Mistake]) -> list[str]:
    return [problem.path for problem in found]


def test_validate_finds_nothing_in_sound_connectors(listed):
    assert check(listed()) == []


def test_validate_looks_at_each_connector_and_says_of_which(listed, tmp_path):
    (tmp_path / "tables.yaml").write_text("public.orders: {columns: {id: nonsense}}")
    shop = {"skipped.operations": "c"}
    crm = {"topic.prefix": "shop"}
    odd = {"schema_file": str(tmp_path / "tables.yaml"), "database": {"url": "oracle://h"}}
    assert sorted(paths(check(listed(shop, crm, **odd)))) == [
        "connector crm.json: public.orders.columns.id",
        "connector crm.json: source.connectors[1].database.url",
        "connector crm.json: topic.prefix",
        "connector shop.json: skipped.operations",
    ]
    (tmp_path / "crm.json").write_text("{")
    files = listed()
    (tmp_path / "crm.json").write_text("{")
    assert paths(check(files)) == ["connector crm.json: source.connectors[1].connector_file"]
