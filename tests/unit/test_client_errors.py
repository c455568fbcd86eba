"""What the errors of clients mean: refused for good, refused for now, or away."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from lakemark.client_errors import Admission, LastError, refused_settings
from lakemark.config import DatabaseConfig
from lakemark.errors import DependencyError
from lakemark.settings.check import check
from lakemark.settings.layers import InvalidConfig, LoginRefused
from lakemark.snapshot.readers.postgres import read_schemas
from lakemark.snapshot.readers.postgres_session import connect
from lakemark.source.schema import HandlingModes
from stack.processes import free_port
from tests.kit.connector_settings import config as settings
from tests.unit.test_kafka_settings import config

TIMED_OUT = KafkaError(KafkaError._TIMED_OUT)


def test_a_client_whose_password_is_refused_makes_room_for_another():
    admission = Admission()
    for passing in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
        admission(KafkaError(passing))
        admission.require()
    admission(KafkaError(KafkaError._AUTHENTICATION))
    admission(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(LoginRefused) as caught:
        admission.require()
    assert (caught.value.code, caught.value.retried) == ("kafka-refused", True)
    assert "kafka.security" in caught.value.hint


@pytest.mark.parametrize(
    ("last", "met", "expected"),
    [
        (KafkaError._AUTHENTICATION, False, LoginRefused),
        (KafkaError._SSL, False, LoginRefused),
        (KafkaError._AUTHENTICATION, True, DependencyError),
        (KafkaError._TRANSPORT, False, DependencyError),
        (None, False, DependencyError),
    ],
)
def test_a_request_without_an_answer_is_refused_only_at_the_first_contact(last, met, expected):
    errors = LastError()
    if last is not None:
        errors(KafkaError(last))
    found = errors.explain(config(), TIMED_OUT, met=met)
    assert type(found) is expected
    if expected is DependencyError:
        assert found.code == "kafka-unavailable"
        assert TIMED_OUT.str() in found.message
        assert "a:1" in found.message


def test_settings_that_the_client_refuses_are_a_mistake_of_the_configuration():
    with pytest.raises(InvalidConfig, match="refuses its settings"), refused_settings():
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "No such property"))


WRONG = {
    "sslmod=require": 'query parameter: "sslmod"',
    "sslmode=verify_full": 'sslmode value: "verify_full"',
    "target_session_attrs=first": "target_session_attrs value",
    "ssl_min_protocol_version=9": "ssl_min_protocol_version",
    "keepalives=no": 'integer value "no"',
}


@pytest.mark.parametrize(("parameter", "words"), WRONG.items())
def test_a_wrong_parameter_of_the_database_s_address_is_not_tried_again(parameter, words):
    database = DatabaseConfig(url=f"postgresql://u@127.0.0.1:{free_port()}/d?{parameter}")
    with pytest.raises(InvalidConfig) as by_catalog:
        read_schemas(database, [], HandlingModes(), settings={})
    with pytest.raises(InvalidConfig) as by_snapshot, connect(database):
        pass
    for caught in (by_catalog, by_snapshot):
        assert not caught.value.retried
        assert [p.path for p in caught.value.problems] == ["database.url"]
        assert words in caught.value.message


def test_a_database_that_is_away_is_tried_again():
    database = DatabaseConfig(url=f"postgresql://u@127.0.0.1:{free_port()}/d?sslmode=disable")
    with pytest.raises(DependencyError):
        read_schemas(database, [], HandlingModes(), settings={})


def test_parameters_that_the_database_s_client_does_not_know_are_found_offline():
    (problem,) = check(settings(database={"url": "postgresql://u@h/d?sslmod=require"}))
    assert problem.path == "database.url"
    assert "sslmod" in problem.message
    (problem,) = check(settings(database={"url": "postgresql://u:hush%zz@h/d"}))
    assert "hush" not in problem.message
