"""What the errors of clients mean: refused for good, refused for now, or away."""

import itertools
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from lakemark.cli.check import check
from lakemark.connectors.postgres.postgres import read_schemas
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.errors import DependencyError
from lakemark.kafka import client_errors
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_errors import (
    Admission,
    LastError,
    await_first_answer,
    refused_settings,
)
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import InvalidConfig, LoginRefused
from stack.processes import free_port
from tests.kit.connector_settings import config as settings
from tests.unit.kafka.test_client_settings import config

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


class Notices:
    """The lines about brokers that do not answer, without the rule that there are few."""

    def __init__(self):
        self.said = []

    def say(self, brokers, reason, **seconds):
        self.said.append((brokers, reason, seconds))


@pytest.fixture
def notices(monkeypatch):
    monkeypatch.setattr(client_errors, "SILENT_S", 0)
    monkeypatch.setattr(client_errors, "_notices", found := Notices())
    return found


def test_brokers_that_do_not_answer_are_named_while_they_are_waited_for(notices):
    place = f"127.0.0.1:{free_port()}"
    settings = config(bootstrap_servers=place, timeout="500ms")
    with Cluster(settings) as cluster, pytest.raises(DependencyError) as caught:
        cluster.topics(".*")
    assert caught.value.code == "kafka-unavailable"
    assert "no answer within 0.5 s" in caught.value.message
    assert "Connection refused" in caught.value.message
    assert "CONNECT)" not in caught.value.message
    assert {brokers for brokers, _, _ in notices.said} == {place}
    assert any("Connection refused" in reason for _, reason, _ in notices.said)


def test_whoever_stops_does_not_wait_for_the_brokers(notices):
    over = threading.Event()
    over.set()
    settings = config(bootstrap_servers=f"127.0.0.1:{free_port()}", timeout="30m")
    with Cluster(settings, over=over) as cluster, pytest.raises(DependencyError):
        cluster.topics(".*")


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError._SSL])
def test_what_one_broker_refuses_is_known_at_once_unless_another_lets_us_in(monkeypatch, code):
    last, settings = LastError(), config(timeout="1h")
    last(KafkaError(code, "wrong password"))
    last(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    await_first_answer(settings, last, iter([False, False, True]).__next__)
    monkeypatch.setattr(client_errors, "REFUSED_S", 0)
    with pytest.raises(LoginRefused, match="wrong password"):
        await_first_answer(settings, last, lambda: False)


def test_lines_about_brokers_are_few(monkeypatch):
    said, now = [], 1000.0
    monkeypatch.setattr(client_errors.log, "warning", lambda *_, **fields: said.append(now))
    monkeypatch.setattr(client_errors.time, "monotonic", lambda: now)
    notices = client_errors._Notices()
    for _ in range(3000):
        notices.say("a:1", "refused", waited_s=now, left_s=1.0)
        now += 0.1
    gaps = [end - begin for begin, end in itertools.pairwise(said)]
    assert max(gaps[:6]) < 10  # a minute is watched
    assert all(gap > 59 for gap in gaps[7:])  # an hour is not


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
    (problem,) = check(settings(database={"url": "oracle://u:hush@h/d"}))
    assert (problem.path, "hush" in problem.message) == ("database.url", False)
    assert "postgresql://" in problem.message
    assert check(settings(database={"url": "postgres://u@h/d"})) == []
    (problem,) = check(settings(database={"url": "postgresql://u:hush%zz@h/d"}))
    assert "hush" not in problem.message
