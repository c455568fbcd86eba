"""One way to say how to reach Kafka, two clients that understand it."""

import re

import pytest

from lakemark.client_settings import (
    by_offset,
    carried,
    here,
    jaas_quoted,
    java_options,
    librdkafka_options,
)
from lakemark.config import Config
from lakemark.kafka import Cluster, topic_plan
from lakemark.settings.layers import InvalidConfig

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
