"""Settings of a connector with which rows of chunks would differ from rows of events."""

import pytest

from lakemark.connectors.refusals import refusals
from stack.avro import avro_settings

TABLE = "public.people"
JSON = "org.apache.kafka.connect.json.JsonConverter"
COLUMNS = ("id", "name", "e-mail")


def codes(columns=COLUMNS, **settings: str) -> list[str]:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return [found.code for found in refusals(given, TABLE, columns)]


@pytest.mark.parametrize(
    "setting",
    [
        "column.mask.with.12.chars",
        "column.mask.hash.SHA-256.with.salt.pepper",
        "column.mask.hash.v2.SHA-256.with.salt.pepper",
        "column.truncate.to.20.chars",
    ],
)
def test_rewritten_columns_concern_their_own_table(setting):
    expected = ["column-truncated" if "truncate" in setting else "column-masked"]
    for value in ("public.people.name", r"other.t.x, PUBLIC\.(people|pets)\..*", ".*"):
        (found,) = refusals({setting: value}, TABLE, COLUMNS)
        assert [found.code] == expected
        assert TABLE in found.message
        assert "name" in found.message
    for value in ("public.people.age", "public.peoples.name", "name", ""):
        assert refusals({setting: value}, TABLE, COLUMNS) == []
    assert [r.code for r in refusals({setting: "a.b.c"}, TABLE)] == expected  # columns not known
    assert [r.code for r in refusals({setting: r"\p{javaX}[a&&b]"}, TABLE, COLUMNS)] == expected


def test_a_mode_that_renames_matters_only_to_names_that_it_changes():
    assert codes(field__name__adjustment__mode="avro") == ["columns-renamed"]
    assert codes(("id", "name"), field__name__adjustment__mode="avro") == []
    assert codes(field__name__adjustment__mode="none") == []


def test_names_that_avro_changes_are_the_source_s_again_where_they_are_propagated():
    avro = avro_settings("http://registry/apis/registry/v2")
    (found,) = refusals(avro, TABLE, COLUMNS)
    assert found.code == "columns-renamed"
    assert "column.propagate.source.type" in found.hint
    for columns in (COLUMNS, ()):
        assert refusals({**avro, "column.propagate.source.type": ".*"}, TABLE, columns) == []
    other = {**avro, "column.propagate.source.type": r"public\.pets\..*"}
    assert [one.code for one in refusals(other, TABLE, COLUMNS)] == ["columns-renamed"]
    mixed = {**avro, "key.converter": JSON, "column.propagate.source.type": ".*"}
    assert [one.code for one in refusals(mixed, TABLE, COLUMNS)] == ["columns-renamed"]


def test_converters_and_post_processors():
    assert codes(converters="isbn") == ["custom-converter"]
    reselect = "io.debezium.processors.reselect.ReselectColumnsPostProcessor"
    assert codes(post__processors="again", again__type=reselect) == []
    assert codes(post__processors="own", own__type="com.example.Own") == ["post-processor"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("io.debezium.transforms.TimezoneConverter", "transform-changes-events"),
        ("com.example.Mine", "transform-changes-events"),
        ("io.debezium.transforms.Filter", "transform-filters"),
        ("org.apache.kafka.connect.transforms.RegexRouter", None),
        ("io.debezium.transforms.ExtractNewRecordState", None),
        ("org.apache.kafka.connect.transforms.InsertField$Key", "transform-changes-events"),
        ("io.debezium.transforms.ExtractChangedRecordState", None),
    ],
)
def test_transforms(name, code):
    assert codes(transforms="t", transforms__t__type=name) == ([code] if code else [])


def test_a_connector_as_it_comes_is_not_refused():
    settings = {"connector.class": "io.debezium.connector.postgresql.PostgresConnector"}
    settings |= {"column.exclude.list": "public.people.name", "decimal.handling.mode": "double"}
    assert refusals(settings, TABLE, COLUMNS) == []
