"""One way to say how to reach Kafka, two clients that understand it."""

import base64
import pickle
import queue
import re
import threading
import time
import zipfile
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka import KafkaError

from lakemark.cli.check import check
from lakemark.kafka import msk_iam
from lakemark.kafka.brokers import Cluster, topic_plan
from lakemark.kafka.client_settings import (
    by_offset,
    carried,
    here,
    jaas_quoted,
    java_options,
    librdkafka_options,
)
from lakemark.settings import cache
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig
from lakemark.source import librdkafka
from lakemark.spark import jars
from stack.processes import free_port
from tests.kit.connector_settings import config as settings

MSK_JAR = jars.read_list(jars.MSK_IAM_LIST)[0].path(cache.cache_dir() / "jars")
KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"
PLACES = {"ca": "ca", "certificate": "cert", "key": "key"}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


def config(**kafka) -> Config:
    return Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": "a:1", **kafka},
            "source": {"connect": {"url": "http://c", "connector": "s"}},
            "lake": {"path": "/lake"},
            "checkpoint": "/checkpoint",
            "stream": {"shards": 6},
        }
    )


@pytest.fixture
def files(tmp_path):
    for name, text in {
        "ca": CERTIFICATE,
        "cert": CERTIFICATE,
        "key": KEY,
        "der": "\x30\x82",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pkcs1").write_text(KEY.replace("PRIVATE", "RSA PRIVATE"))
    return tmp_path


def test_plain_text():
    assert java_options(config()) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.client.id": "lakemark-shop",
        "kafka.security.protocol": "PLAINTEXT",
    }
    assert librdkafka_options(config())["security.protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")],
)
def test_password_for_both_clients(mechanism, module):
    given = config(
        security={
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_username": "u",
            "sasl_password": 'p"\\w',
        }
    )
    java, ours = java_options(given), librdkafka_options(given)
    assert java["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="u" password="p\\"\\\\w";'
    )
    assert java["kafka.ssl.endpoint.identification.algorithm"] == "https"
    assert (ours["sasl.username"], ours["sasl.password"]) == ("u", 'p"\\w')
    assert ours["sasl.mechanism"] == java["kafka.sasl.mechanism"] == mechanism


def test_tokens(files):
    """Of OIDC's client credentials, with what brokers of a cloud want beside them."""
    given = config(
        security={
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": "https://id.example/token",
            "sasl_oauthbearer_client_id": "me",
            "sasl_oauthbearer_client_secret": 'hush"\\',
            "sasl_oauthbearer_scope": "kafka",
            "sasl_oauthbearer_extensions": {"logicalCluster": "lkc-1", "identityPoolId": "p"},
            "sasl_oauthbearer_ca_location": str(files / "ca"),
        },
    )
    java = java_options(given)
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    trusted = CERTIFICATE.replace("\n", "\\n")
    assert java["kafka.sasl.jaas.config"] == (
        f'{module} required clientId="me" clientSecret="hush\\"\\\\" scope="kafka"'
        ' extension_logicalCluster="lkc-1" extension_identityPoolId="p"'
        f' ssl.truststore.type="PEM" ssl.truststore.certificates="{trusted}";'
    )
    assert java["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"
    assert "kafka.ssl.truststore.certificates" not in java  # the brokers have authorities of theirs
    ours = librdkafka_options(given)
    assert ours["sasl.mechanism"] == java["kafka.sasl.mechanism"] == "OAUTHBEARER"
    assert ours["sasl.oauthbearer.method"] == "oidc"
    assert ours["sasl.oauthbearer.client.secret"] == 'hush"\\'
    assert ours["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,identityPoolId=p"
    assert ours["https.ca.location"] == str(files / "ca")
    with Cluster(given):  # librdkafka knows all of them
        pass
    moved = carried(ours)
    (files / "ca").unlink()
    assert here(moved)["https.ca.pem"] == CERTIFICATE  # on another machine


IAM = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM", "sasl_aws_region": "eu-1"}


def test_aws_iam_signs_tokens_for_librdkafka_and_has_a_jar_for_java(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    given = config(security=IAM)
    java = java_options(given)
    assert java["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert java["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    classes = zipfile.ZipFile(MSK_JAR).namelist() if MSK_JAR.exists() else []
    for name in ("IAMLoginModule", "IAMClientCallbackHandler"):
        assert not classes or f"software/amazon/msk/auth/iam/{name}.class" in classes
    ours = pickle.loads(pickle.dumps(librdkafka_options(given)))  # as tasks are given them
    assert ours == librdkafka_options(given)
    assert ours["sasl.mechanism"] == "OAUTHBEARER"
    token, expires_s = ours["oauth_cb"]("")
    signed = urlsplit(base64.urlsafe_b64decode(token + "==").decode())
    asked = parse_qs(signed.query)
    assert signed.hostname == "kafka.eu-1.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert asked["X-Amz-Credential"][0].startswith("AKIAEXAMPLE/")
    assert "hush-hush" not in signed.geturl()
    assert time.time() < expires_s <= time.time() + 900


def test_aws_iam_without_its_signer_is_a_mistake_that_is_found_offline(monkeypatch):
    monkeypatch.setattr(msk_iam, "SIGNER", "no_such_module")
    (problem,) = check(settings(kafka={"bootstrap_servers": "a:1", "security": IAM}))
    assert problem.path == "kafka.security.sasl_mechanism"
    assert "pip install 'lakemark[msk-iam]'" in problem.hint


def asked_for_a_token(callback):
    """A reader that needs a token, and what it met until one was asked for."""
    called, met = threading.Event(), queue.Queue()

    def token(text):
        called.set()
        return callback(text)

    reader = librdkafka.Reader(
        {
            "bootstrap.servers": f"127.0.0.1:{free_port()}", "group.id": "g", "log_level": 0,
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": token,
        },
        met.put,
    )  # fmt: skip
    assert called.wait(30)  # though nothing was polled
    return reader, met


def test_a_reader_asks_for_tokens_by_itself():
    reader, met = asked_for_a_token(lambda _: ("token", time.time() + 900))
    reader.some(1, 0.1)
    reader.close()
    refused = [e for e in met.queue if e.code() == KafkaError._AUTHENTICATION]
    assert refused == []


def test_a_token_that_cannot_be_had_is_an_error_of_the_reader():
    def fails(_):
        raise ValueError("no credentials")

    reader, met = asked_for_a_token(fails)
    end = time.monotonic() + 30
    while not any(e.code() == KafkaError._AUTHENTICATION for e in met.queue):
        assert time.monotonic() < end
        reader.some(1, 0.1)
    reader.close()
    assert any("no credentials" in e.str() for e in met.queue)


def certificates(files, **more: str) -> dict[str, str]:
    """`kafka.security` with a client's certificate."""
    places = {f"ssl_{name}_location": str(files / file) for name, file in PLACES.items()}
    return {"security_protocol": "SSL", **places, **more}


def test_certificates_go_by_value_to_java_and_by_place_to_librdkafka(files):
    given = config(
        security=certificates(files, ssl_key_password="pw", ssl_endpoint_identification="none")
    )
    java, ours = java_options(given), librdkafka_options(given)
    assert java["kafka.ssl.truststore.type"] == java["kafka.ssl.keystore.type"] == "PEM"
    assert java["kafka.ssl.truststore.certificates"] == CERTIFICATE
    assert java["kafka.ssl.keystore.key"] == KEY
    assert java["kafka.ssl.key.password"] == ours["ssl.key.password"] == "pw"
    assert java["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert ours["ssl.endpoint.identification.algorithm"] == "none"
    assert ours["ssl.ca.location"] == str(files / "ca")
    assert not [name for name in java if name.endswith(".location")]


@pytest.mark.parametrize(("key", "words"), [("pkcs1", "openssl pkcs8"), ("der", "openssl")])
def test_keys_that_java_cannot_read_are_found_before_the_start(files, key, words):
    given = config(
        security={
            "security_protocol": "SSL",
            "ssl_certificate_location": str(files / "cert"),
            "ssl_key_location": str(files / key),
        }
    )
    with pytest.raises(InvalidConfig) as caught:
        java_options(given)
    assert words in caught.value.hint


def test_more_settings_are_passed_on_and_their_secrets_hidden():
    given = config(
        java={"sasl.jaas.config": "hush-4hush", "max.poll.records": 7},
        librdkafka={"socket.keepalive.enable": True},
    )
    assert java_options(given)["kafka.sasl.jaas.config"] == "hush-4hush"
    assert java_options(given)["kafka.max.poll.records"] == "7"
    assert librdkafka_options(given)["socket.keepalive.enable"] == "true"
    assert "hush" not in repr(given)
    assert given.secrets() == {"hush-4hush"}


def test_a_setting_that_librdkafka_does_not_know():
    given = config(librdkafka={"no.such.setting": "1"})
    with pytest.raises(InvalidConfig, match=r"no.such\.setting"), Cluster(given):
        pass


def test_jaas_quoting_is_read_back():
    for text in ("plain", 'a"b', "a\\b", '\\"'):
        inner = jaas_quoted(text)[1:-1]
        assert re.sub(r"\\(.)", r"\1", inner) == text


def test_our_own_topics():
    plan = topic_plan(config())
    assert {name: count for name, (count, _) in plan.items()} == {
        "shop.signals": 1,
        "shop.notifications": 1,
        "shop.chunks": 6,
        "shop.control": 1,
        "shop.progress": 1,
        "shop.dead-letters": 6,
    }
    assert plan["shop.progress"][1]["cleanup.policy"] == "compact"
    assert int(plan["shop.dead-letters"][1]["max.message.bytes"]) >= 10 * 1024**2 + 1024
    assert int(plan["shop.chunks"][1]["max.message.bytes"]) > 900_000


def test_tasks_have_files_by_value_where_they_are_not(files):
    """What they read with: another machine need not have the files, this one uses them."""
    given = config(security=certificates(files))
    ours = by_offset(given)
    sent = carried(ours)
    assert here(sent) == ours
    for name in ("ca", "cert", "key"):
        (files / name).unlink()
    there = here(sent)
    assert there["ssl.ca.pem"] == there["ssl.certificate.pem"] == CERTIFICATE
    assert there["ssl.key.pem"] == KEY
    assert not [name for name in there if name.startswith("ssl.") and "location" in name]
    assert carried(by_offset(config())) == by_offset(config())


def test_what_is_no_file_goes_to_tasks_as_it_is(files):
    """librdkafka takes folders too, and a word; whether it can read something it says itself."""
    for place in (str(files), "probe", str(files / "no-such-file")):
        told = {"ssl.ca.location": place}
        assert carried(told) == told
        assert here(carried(told)) == told
    (files / "latin").write_bytes(b"# Gr\xfc\xdfe\n" + CERTIFICATE.encode())
    sent = carried({"ssl.ca.location": str(files / "latin")})
    assert here(sent) == {"ssl.ca.location": str(files / "latin")}
    (files / "latin").unlink()
    assert CERTIFICATE in here(sent)["ssl.ca.pem"]
