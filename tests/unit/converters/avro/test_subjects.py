"""The names under which schemas are registered, by the strategies that connectors set."""

import pytest

from lakemark.converters.avro.subjects import problems, strategies, subject_of
from lakemark.converters.registry import choice_of, output_choice, output_problems

CONVERTER = "io.confluent.connect.avro.AvroConverter"
APICURIO = "io.apicurio.registry.utils.converter.AvroConverter"
SCHEMA = {"type": "record", "name": "Envelope", "namespace": "shop.public.orders", "fields": []}
URL = {"schema.registry.url": "http://registry:8081"}


def connector(**told):
    settings = {f"{side}.converter": CONVERTER for side in ("key", "value")}
    return {**settings, **{name.replace("__", "."): value for name, value in told.items()}}


@pytest.mark.parametrize(
    ("setting", "strategy", "subject"),
    [
        ("value.subject.name.strategy", None, "out-value"),
        ("value.subject.name.strategy", "io.c.TopicNameStrategy", "out-value"),
        ("value.subject.name.strategy", "io.c.RecordNameStrategy", "shop.public.orders.Envelope"),
        (
            "value.subject.name.strategy",
            "io.c.TopicRecordNameStrategy",
            "out-shop.public.orders.Envelope",
        ),
        ("apicurio.registry.artifact-resolver-strategy", "io.a.TopicIdStrategy", "out-value"),
        ("apicurio.registry.artifact-resolver-strategy", "io.a.SimpleTopicIdStrategy", "out"),
        (
            "apicurio.registry.artifact-resolver-strategy",
            "io.a.TopicRecordIdStrategy",
            "out-shop.public.orders.Envelope",
        ),
    ],
)
def test_a_subject_is_named_as_the_connectors_converter_names_it(setting, strategy, subject):
    told = {f"value.converter.{setting}": strategy} if strategy else {}
    options = choice_of(connector(**told), URL).options
    assert subject_of("out", "value", SCHEMA, options) == subject
    assert subject_of("out", "key", SCHEMA, options) == "out-key"
    assert not [*problems(options)]
    elsewhere = {"schema.registry.url": "http://other:8081"}
    own = output_choice(connector(**told), URL, format_="avro", told=elsewhere)
    assert subject_of("out", "value", SCHEMA, own.options) == subject, "another registry's, too"
    assert {*strategies(options)} == ({"value.subject.name.strategy"} if strategy else set())


@pytest.mark.parametrize(
    ("strategy", "group", "subject"),
    [
        (None, None, "out-value"),
        (None, "house", "house/out-value"),
        ("RecordIdStrategy", None, "shop.public.orders/Envelope"),
        ("RecordIdStrategy", "house", "house/Envelope"),
        ("TopicRecordIdStrategy", None, "shop.public.orders/out-Envelope"),
        ("QualifiedRecordIdStrategy", None, "shop.public.orders.Envelope"),
    ],
)
def test_through_apicurio_s_own_api_an_artifact_has_the_group_of_its_converter(
    strategy, group, subject
):
    told = {
        "artifact-resolver-strategy": strategy and f"io.a.{strategy}",
        "artifact.group-id": group,
    }
    more = {f"value.converter.apicurio.registry.{n}": v for n, v in told.items() if v}
    url = {"apicurio.registry.url": "http://registry:8080/apis/registry/v2"}
    options = choice_of({**connector(), **more}, url).options
    assert subject_of("out", "value", SCHEMA, options) == subject
    assert subject_of("out", "value", {"type": "string"}, choice_of(connector(), url).options)
    bare = {"type": "record", "name": "Envelope", "fields": []}
    assert "/" not in subject_of("out", "value", bare, options) or group


def test_a_strategy_of_somebodys_own_is_a_mistake_of_the_output():
    told = {"value.converter.value.subject.name.strategy": "com.us.OurStrategy"}
    choice = output_choice(connector(**told), URL, format_="avro", told={})
    (problem,) = output_problems(choice)
    assert problem.path == "output.converter.value.subject.name.strategy"
    assert "OurStrategy" in problem.message
    assert not [*problems(choice_of(connector(), URL).options)]


def test_the_form_of_the_topics_is_independent_of_the_connectors():
    plain = {
        f"{side}.converter": "org.apache.kafka.connect.json.JsonConverter"
        for side in ("key", "value")
    }
    assert output_choice(plain, {}, format_=None, told={}) is None
    assert output_choice(plain, {}, format_="json", told={}) is None
    (problem,) = output_problems(output_choice(plain, {}, format_="avro", told={}))
    assert (problem.path, "no schema registry" in problem.message) == ("output.converter", True)
    made = output_choice(plain, {}, format_="avro", told=URL)
    assert (made.name, not [*output_problems(made)]) == ("avro", True)
    for form in (None, "avro"):
        same = output_choice(connector(), URL, format_=form, told={})
        assert (same.name, dict(same.options.own)) == ("avro", URL)
    back = output_choice(connector(), URL, format_="json", told={"schemas.enable": "false"})
    assert (back.name, dict(back.options.own)) == ("json", {"schemas.enable": "false"})
    assert not [*output_problems(back)]
