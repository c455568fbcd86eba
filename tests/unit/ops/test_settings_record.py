"""What a changed setting takes: every one has a rule, and what differs is found, without secrets."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from lakemark.ops import settings_record
from lakemark.ops.effects import RULES, Takes, rule_of
from lakemark.settings.config import Config, ConnectorConfig, TableConfig

SCHEMA = Path(__file__).parents[3] / "schemas" / "progress.json"
SECTIONS = {
    "name": "shop",
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "source": {"connect": {"url": "http://localhost:8083", "connector": "shop"}},
    "lake": {"path": "/lake"},
    "checkpoint": "/checkpoint",
    "database": {"url": "postgresql://u:pass-word@h/d", "password": "hush-4hush"},
}


def config(**more) -> Config:
    return Config.model_validate({**SECTIONS, **more}, context={"base": Path("/")})


def settings_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every setting that the model knows; keys of maps are `x`."""
    found = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = [c for c in _parts(field.annotation) if isinstance(c, type)]
        sections = [c for c in inner if issubclass(c, BaseModel)]
        if ConnectorConfig in sections:
            found += [path, *settings_of(ConnectorConfig, f"{path}[x].")]
        elif TableConfig in sections:
            found += [path, *settings_of(TableConfig, f"{path}.public.x.")]
        elif sections:
            found += [s for c in sections for s in settings_of(c, f"{path}.")]
        else:
            found += [path, f"{path}.x"] if dict in inner else [path]
    return found


def _parts(annotation) -> list:
    args = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", None)
    return [annotation, origin, *(p for a in args for p in _parts(a))]


def test_every_setting_has_a_rule():
    names = settings_of(Config)
    assert {"stream.shards", "source.connect.url", "lake.tables.public.x.path", "spark"} <= {*names}
    assert len(names) > 50
    for name in names:
        assert rule_of(name).takes in Takes


def test_every_rule_is_of_a_setting_and_is_reached():
    reached = {id(rule_of(n, to=to)) for n in settings_of(Config) for to in ("", "hard")}
    optional = {"database", "output", "source.connect"}  # a section that is not set is one setting
    assert [r.settings for r in RULES if id(r) not in reached and r.settings not in optional] == []
    with pytest.raises(LookupError):
        rule_of("nonsense")


def takes(before: Config, now: Config) -> dict[str, str]:
    found = settings_record.changes(settings_record.masked(before), now)
    return {change.setting: change.takes.value for change in found}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {}),
        ({"snapshot": {"chunk_rows": 7}}, {"snapshot.chunk_rows": "live"}),
        ({"stream": {"shards": 8, "trigger": "2s"}},
         {"stream.trigger": "restart", "stream.shards": "new checkpoint"}),
        ({"lake": {"path": "/other"}}, {"lake.path": "re-snapshot"}),
        ({"lake": {"path": "/lake", "deletes": "soft"}}, {"lake.deletes": "restart"}),
        ({"lake": {"path": "/lake", "tables": {"public.a": {"path": "/p"}}}},
         {"lake.tables.public.a.path": "re-snapshot"}),
        ({"database": None}, {"database.url": "restart", "database.password": "restart",
                              "database.connect_timeout": "restart"}),
        ({"spark": {"spark.x": "1"}}, {"spark.spark.x": "restart"}),
    ],
)  # fmt: skip
def test_what_differs_and_what_it_takes(changed, expected):
    found = takes(config(), config(**changed))
    assert {name: found[name] for name in expected} == expected
    assert {n for n in found if not n.startswith("lake.tables")} <= {*expected}
    back = takes(config(**changed), config())
    assert back.keys() >= {n for n in expected if not n.startswith("lake.tables")}


def test_deleted_rows_that_were_kept_need_a_sweep():
    soft, hard = ({"path": "/lake", "deletes": word} for word in ("soft", "hard"))
    assert takes(config(lake=soft), config(lake=hard)) == {"lake.deletes": "re-snapshot"}


def test_only_what_was_said_is_compared():
    found = settings_record.changes({"name": "shop", "stream.shards": "4"}, config())
    assert [(c.setting, c.before, c.now) for c in found] == [("stream.shards", "4", "2")]
    assert settings_record.changes({"gone.in.this.version": "x"}, config()) == []


def test_the_record_has_no_secret_and_can_be_read_again():
    blob = settings_record.encode(config(), ts_ms=1)
    assert b"hush-4hush" not in blob
    assert b"pass-word" not in blob
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(blob))
    read = settings_record.decode(blob)
    assert read is not None
    assert read.settings == settings_record.masked(config())
    assert settings_record.decode(b"{") is settings_record.decode(None) is None
