"""The doctor asks whoever a connector's converter needs, without knowing who that is."""

import pytest

from lakemark.converters.registry import CONVERTERS
from lakemark.ops.doctor import doctor
from tests.kit.connector_settings import config, parse
from tests.kit.msgpack_converter import NAME, MsgpackConverter
from tests.kit.registry_server import serving
from tests.kit.verdicts import ERROR

(PACKED,) = MsgpackConverter.java_classes
TABLES = ["public.orders", "public.items"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(CONVERTERS, NAME, MsgpackConverter())


def found(settings=(), tables=TABLES, **changes):
    connector = parse(settings, **changes)
    return doctor._converter(config(**changes), connector, tables, 20)


def packed(cipher: str) -> dict[str, str]:
    return {"value.converter": PACKED, "value.converter.cipher": cipher}


def test_it_is_asked_about_the_topics_of_the_captured_tables():
    assert [(f.check, f.subject) for f in found(packed("1"))] == [
        ("cipher", "shop.public.orders"),
        ("cipher", "shop.public.items"),
    ]


def test_nobody_is_asked_about_topics_that_a_router_has_renamed():
    source = {"connect": {"url": "http://c:1", "connector": "shop"}, "topics": r"v2\..+"}
    assert found(packed("1"), source=source) == []


def test_who_does_not_answer_is_an_error_and_what_it_was_to_be_asked_too():
    away, unasked = found(packed("13"))
    assert (away.check, away.verdict, away.reason) == ("cipher", ERROR, "nobody knows the cipher")
    assert unasked.check == "key of the cipher"
    assert unasked.reason == "not checked: the cipher did not answer"


def test_json_needs_nobody():
    assert found() == []
    assert doctor._converter(config(), None, TABLES, 20) == []


def test_the_registry_of_output_topics_is_asked_where_it_is_another_one(tmp_path):
    with serving() as registry:
        told = {"schema.registry.url": registry.url, "registry.folder": str(tmp_path)}
        output = {"topic_prefix": "clean", "format": "avro", "converter": told}
        (answers, _) = found(output=output)
        assert (answers.check, answers.subject) == ("schema registry", registry.url)
        assert "answers" in answers.reason
        registry.status = 500
        away, *_ = found(output=output)
        assert (away.check, away.verdict) == ("schema registry", ERROR)
    assert found(output={"topic_prefix": "clean"}) == []
