"""The converter that a connector's records have: its own words, ours before them, or a guess."""

import pytest

from lakemark.converters.registry import SIDES, choice_of, converter_of, problems

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
AT = {"value.converter.schema.registry.url": "http://registry:8081"}
PLAIN = {"key.converter": JSON, "key.converter.schemas.enable": "false"}


@pytest.mark.parametrize(
    ("settings", "own", "name", "carries"),
    [
        ({}, {}, "json", (None, None)),
        (PLAIN, {}, "json", (False, None)),
        ({}, {"value.converter": AVRO, **AT}, "avro", (None, True)),
        (PLAIN, {"value.converter": AVRO, **AT}, "avro", (False, True)),
        ({"value.converter": AVRO, **AT}, PLAIN | {"value.converter": JSON}, "json", (False, True)),
        ({"value.converter": AVRO}, AT, "avro", (None, True)),
    ],
)
def test_what_the_worker_does_is_said_in_our_settings(settings, own, name, carries):
    choice = choice_of(settings, own)
    assert choice.name == name
    converter = converter_of(choice)
    assert tuple(converter.carries_schemas(side) for side in SIDES) == carries
    found = [*problems(settings, own, described=False)]
    assert not [one for one in found if not one.warning]
    unset = {f"{side}.converter" for side in SIDES if carries[SIDES.index(side)] is None}
    assert {one.path for one in found if "worker" in one.message} == unset


def test_what_is_wrong_with_our_settings_is_said_where_they_stand():
    own = {"value.converter": JSON, "value.converter.schemas.enable": "false"}
    wrong = [one.path for one in problems({}, own, described=False) if not one.warning]
    assert wrong == ["source.converter.value.converter.schemas.enable"]
    wrong = [one.path for one in problems({"value.converter": "x.Y"}, {}, described=True)]
    assert "value.converter" in wrong


def test_of_a_converter_that_is_replaced_nothing_is_left():
    theirs = {"value.converter": JSON, "value.converter.schemas.enable": "false"}
    made = converter_of(choice_of(theirs, {"value.converter": JSON}))
    assert made.carries_schemas("value"), "the default of the class that is named counts"
