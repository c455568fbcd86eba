"""The connector's settings from a file and from Connect's REST API."""

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from lakemark.connectors import connector
from lakemark.connectors.connect_rest import ConnectorStatus, ConnectRest, TaskStatus
from lakemark.errors import ConfigError, DependencyError
from lakemark.settings.config import ConnectConfig
from lakemark.settings.file_secret import FileSecret, Referred, Template
from lakemark.settings.layers import InvalidConfig
from tests.kit.connector_settings import POSTGRES, config


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_connector_s_file_in_both_forms(tmp_path, wrapped):
    settings = {**POSTGRES, "tasks.max": 1, "tombstones.on.delete": True, "gone": None}
    settings["database.password"] = "${file:/secrets:pw}"
    file = tmp_path / "shop.json"
    file.write_text(json.dumps({"name": "named", "config": settings} if wrapped else settings))
    found = connector.read(config(source={"connector_file": str(file)}))
    assert found.name == ("named" if wrapped else "shop")
    assert found.settings["tasks.max"] == "1"
    assert found.settings["tombstones.on.delete"] == "true"
    assert found.settings["database.password"] == "${file:/secrets:pw}"
    assert "gone" not in found.settings
    assert connector.offsets(config(source={"connector_file": str(file)})) == []


@pytest.mark.parametrize("text", ["{", "[]", '"x"', '{"config": []}'])
def test_a_file_that_is_no_connector(tmp_path, text):
    file = tmp_path / "shop.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=r"shop\.json"):
        connector.read(config(source={"connector_file": str(file)}))


def rest(answer) -> ConnectRest:
    connect = ConnectConfig(
        url="http://c:8083", connector="my shop/eu", username="u", password="pw-word"
    )
    client = ConnectRest(connect, transport=httpx.MockTransport(answer))
    client.backoff = 0
    return client


def test_rest_reads_settings_and_offsets():
    asked = []

    def answer(request):
        asked.append((request.url.raw_path, request.headers["authorization"]))
        if request.url.path.endswith("/offsets"):
            return httpx.Response(200, json={"offsets": [{"partition": {}, "offset": {"lsn": 1}}]})
        return httpx.Response(200, json=POSTGRES)

    with rest(answer) as client:
        assert client.settings() == POSTGRES
        assert client.offsets()[0]["offset"] == {"lsn": 1}
    assert [path for path, _ in asked] == [
        b"/connectors/my%20shop%2Feu/config",
        b"/connectors/my%20shop%2Feu/offsets",
    ]
    assert all(auth.startswith("Basic ") for _, auth in asked)


def test_a_password_whose_file_is_written_anew_is_that_of_the_next_request(tmp_path):
    """Also of the next attempt of a request that the old one did not get through."""
    file, asked = tmp_path / "password", []
    file.write_text("old one\n")
    password = FileSecret(Referred.of("old one", Template((file,))))

    def answer(request):
        asked.append(request.headers["authorization"])
        if len(asked) == 2:
            file.write_text("third\n")
            return httpx.Response(503)
        return httpx.Response(200, json=POSTGRES)

    connect = ConnectConfig(url="http://c:8083", connector="c", username="u", password=password)
    with ConnectRest(connect, transport=httpx.MockTransport(answer)) as client:
        client.backoff = 0
        client.settings()
        file.write_text("new: one\n")
        client.settings()
    signed = [f"u:{word}".encode() for word in ("old one", "new: one", "third")]
    assert asked == [f"Basic {b64encode(one).decode()}" for one in signed]


def test_rest_reads_the_states_and_who_answers():
    status = {
        "connector": {"state": "RUNNING", "worker_id": "w"},
        "tasks": [{"id": 0, "state": "FAILED", "worker_id": "w", "trace": "x.Y: z"}],
    }
    answers = {
        "/connectors/my shop/eu/status": httpx.Response(200, json=status),
        "/": httpx.Response(
            200,
            json={"version": "4.1.0", "kafka_cluster_id": "c1"},
            headers={
                "date": format_datetime(datetime.now(UTC) + timedelta(minutes=2), usegmt=True)
            },
        ),
    }
    with rest(lambda request: answers[request.url.path]) as client:
        found, worker = client.status(), client.worker()
    assert found == ConnectorStatus("RUNNING", (TaskStatus(0, "FAILED", "x.Y: z"),))
    assert (worker.version, worker.cluster_id) == ("4.1.0", "c1")
    assert worker.skew_s == pytest.approx(120, abs=2)


@pytest.mark.parametrize(
    "answer", [[], {"connector": {}}, {"connector": {"state": "R"}, "tasks": [1]}]
)
def test_a_state_that_connect_would_not_say(answer):
    with rest(lambda _: httpx.Response(200, json=answer)) as client, pytest.raises(InvalidConfig):
        client.status()


def test_a_worker_that_does_not_say_the_time():
    with rest(lambda _: httpx.Response(200, json={"version": "4"})) as client:
        assert client.worker().skew_s is None
    with rest(lambda _: httpx.Response(200, json={})) as client, pytest.raises(InvalidConfig):
        client.worker()


def test_rest_waits_out_a_rebalance():
    answers = iter([httpx.Response(409), httpx.Response(503), httpx.Response(200, json=POSTGRES)])
    assert rest(lambda _: next(answers)).settings() == POSTGRES


def test_rest_gives_up_after_four_attempts():
    asked = []

    def answer(request):
        asked.append(request)
        raise httpx.ConnectError("refused")

    with pytest.raises(DependencyError, match="is away: refused") as caught:
        rest(answer).settings()
    assert len(asked) == 4
    assert caught.value.retried
    assert "connector_file" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "json_body", "words"),
    [
        (401, {}, "refuses us"),
        (404, {}, "has no connector 'my shop/eu'"),
        (200, [], "does not answer like"),
    ],
)
def test_rest_mistakes_are_configuration_and_not_tried_again(status, json_body, words):
    asked = []

    def answer(request):
        asked.append(request)
        if request.url.path == "/connectors":
            return httpx.Response(200, json=["my-shop/eu", "other"])
        return httpx.Response(status, json=json_body)

    with pytest.raises(ConfigError, match=words) as caught:
        rest(answer).settings()
    assert len(asked) == (2 if status == 404 else 1)
    assert caught.value.code == ("connect-refused" if status == 401 else "configuration")
    if status == 404:
        assert "did you mean my-shop/eu?" in caught.value.hint


@pytest.mark.parametrize("known", [True, False])
def test_a_worker_that_is_too_old_for_offsets_is_no_worker_without_the_connector(known):
    def answer(request):
        path = request.url.path
        if path == "/":
            return httpx.Response(200, json={"version": "3.5.1"})
        if path == "/connectors":
            return httpx.Response(200, json=["other"])
        return httpx.Response(200 if known and path.endswith("/config") else 404, json={})

    with pytest.raises(DependencyError if known else ConfigError) as caught:
        rest(answer).offsets()
    if known:
        assert caught.value.code == "connect-too-old"
        assert "Connect 3.5.1" in caught.value.message
    else:
        assert "it has: other" in caught.value.hint
