"""What the errors of Kafka's clients mean: refused for good, refused for now, or away."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from lakemark.client_errors import Admission, LastError, refused_settings
from lakemark.errors import DependencyError
from lakemark.settings.layers import InvalidConfig, LoginRefused
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
