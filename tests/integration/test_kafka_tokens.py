"""Tokens of an OIDC server instead of passwords: every client of Kafka that lakemark has."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemark.kafka import records
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_settings import by_offset, here, java_options
from lakemark.settings.config import Config
from lakemark.settings.layers import LoginRefused
from lakemark.source import librdkafka
from lakemark.spark.session import session
from stack.kafka import Kafka
from stack.processes import free_port
from tests.kit import token_server
from tests.kit.token_server import AUDIENCE, CLIENT, SCOPE, SECRET, Tokens

pytestmark = pytest.mark.integration
OAUTH = "org.apache.kafka.common.security.oauthbearer"
TOPIC = "orders"
DEADLINE_S = 240.0


class Guarded(Kafka):
    """A broker that wants tokens at its second address, and may read this file of keys."""

    keys: Path

    def _environment(self) -> dict[str, str]:
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        said = f"{allowed}.urls={self.keys.as_uri()} {allowed}.files={self.keys}"
        return {**super()._environment(), "JAVA_TOOL_OPTIONS": said}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    with token_server.serving(tmp_path_factory.mktemp("tokens")) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("kafka")
    kafka, address = Guarded(directory=folder, log=folder / "log"), f"127.0.0.1:{free_port()}"
    kafka.keys = tokens.folder / "jwks.json"
    listener = "listener.name.sasl_plaintext.oauthbearer"
    kafka.settings = {
        "listeners": f"PLAINTEXT://{kafka.bootstrap},SASL_PLAINTEXT://{address},"
        f"CONTROLLER://127.0.0.1:{kafka.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{kafka.bootstrap},SASL_PLAINTEXT://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{listener}.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidator"
        "CallbackHandler",
        f"{listener}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.jwks.endpoint.url": kafka.keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    try:
        kafka.start()
        kafka.create_topic(TOPIC)
        yield address
    finally:
        kafka.stop()


def config(address: str, tokens: Tokens, tmp_path, *, secret: str = SECRET, **kafka) -> Config:
    security = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": tokens.url,
        "sasl_oauthbearer_client_id": CLIENT,
        "sasl_oauthbearer_client_secret": secret,
        "sasl_oauthbearer_scope": SCOPE,
        "sasl_oauthbearer_ca_location": str(tokens.folder / "ca.pem"),
    }
    return Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": address, "security": security, **kafka},
            "source": {"connect": {"url": "http://c", "connector": "s"}},
            "lake": {"path": str(tmp_path / "lake")},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
    )


def test_all_clients_are_let_in(guarded: str, tokens: Tokens, tmp_path):
    settings = config(guarded, tokens, tmp_path)
    with Cluster(settings) as cluster:
        assert cluster.topics(TOPIC) == [TOPIC]
    records.publish(settings, TOPIC, [(b"1", b"one"), (b"2", b"two")])
    assert records.read_compacted(settings, TOPIC) == {b"1": b"one", b"2": b"two"}

    reader = librdkafka.Reader(here(by_offset(settings)), lambda error: None)
    reader.add([(TOPIC, 0, 0)])
    found: list[bytes | None] = []
    end = time.monotonic() + DEADLINE_S
    while len(found) < 2 and time.monotonic() < end:
        for pointer in reader.some(10, 0.2):
            found.append(librdkafka.key_of(librdkafka.message(pointer)))
            librdkafka.release(pointer)
    reader.close()
    assert found == [b"1", b"2"]
    assert set(tokens.asked) == {SCOPE}

    with session(settings) as spark:
        options = {**java_options(settings), "subscribe": TOPIC, "startingOffsets": "earliest"}
        assert spark.read.format("kafka").options(**options).load().count() == 2


def test_a_wrong_secret_is_refused_at_once(guarded: str, tokens: Tokens, tmp_path):
    begun = time.monotonic()
    settings = config(guarded, tokens, tmp_path, secret="wrong", timeout="10m")
    with Cluster(settings) as cluster, pytest.raises(LoginRefused) as caught:
        cluster.topics(TOPIC)
    assert caught.value.code == "kafka-refused"
    assert "wrong" not in caught.value.message
    assert time.monotonic() - begun < DEADLINE_S  # not ten minutes
