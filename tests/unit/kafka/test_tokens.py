"""Tokens as librdkafka asks a real token endpoint for them; no broker is needed for that."""

import time

import pytest

from lakemark.kafka.brokers import Cluster
from lakemark.settings.layers import LoginRefused
from stack.processes import free_port
from tests.kit import token_server
from tests.kit.token_server import CLIENT, SCOPE, SECRET
from tests.unit.kafka.test_client_settings import config

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    with token_server.serving(tmp_path_factory.mktemp("tokens")) as found:
        yield found


def asking(tokens, **other):
    security = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": tokens.url,
        "sasl_oauthbearer_client_id": CLIENT,
        "sasl_oauthbearer_client_secret": SECRET,
        "sasl_oauthbearer_scope": SCOPE,
        "sasl_oauthbearer_ca_location": str(tokens.folder / "ca.pem"),
    }
    wanted = {name: value for name, value in (security | other).items() if value is not None}
    servers = f"127.0.0.1:{free_port()}"
    return config(bootstrap_servers=servers, timeout="10m", security=wanted)


def test_a_token_is_asked_for_by_id_secret_and_scope(tokens):
    tokens.asked.clear()
    with Cluster(asking(tokens)):
        end = time.monotonic() + DEADLINE_S
        while not tokens.given:
            assert time.monotonic() < end, "the endpoint gave no token"
            time.sleep(0.05)
    assert set(tokens.asked) == {SCOPE}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [{"sasl_oauthbearer_client_secret": "hush-hush"}, {"sasl_oauthbearer_ca_location": None}],
    ids=["secret", "authority"],
)
def test_what_the_endpoint_refuses_is_named_at_once(tokens, wrong):
    with Cluster(asking(tokens, **wrong)) as cluster, pytest.raises(LoginRefused) as caught:
        cluster.topics("orders")  # within seconds, not the ten minutes that brokers are waited for
    assert caught.value.code == "kafka-refused"
    assert "token" in caught.value.message.lower()
    assert "hush-hush" not in caught.value.message
