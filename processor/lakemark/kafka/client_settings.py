"""The same connection to Kafka, said to the Java client (Spark) and to librdkafka."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lakemark.kafka import msk_iam
from lakemark.kafka.own_topics import owner_group
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake
from lakemark.settings.security import AWS_MSK_IAM, OAUTHBEARER, SecurityConfig
from lakemark.settings.units import reveal

_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_MSK_IAM: Final = "software.amazon.msk.auth.iam"
_BY_VALUE: Final = {
    "https.ca.location": "https.ca.pem",
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
_SAID: Final = "said"  # no setting of the client's
_PKCS8: Final = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def java_options(config: Config) -> dict[str, str]:
    """Options of Spark's Kafka source and sink, with their prefix ``kafka.``.

    Certificates go by value, so that executors on other machines need no files.

    Raises:
        InvalidConfig: a certificate or key is not in the form that the Java client reads.
    """
    java = {
        "bootstrap.servers": config.kafka.bootstrap_servers,
        "client.id": f"lakemark-{config.name}",
        **_java_security(config.kafka.security),
        **reveal(config.kafka.java),
    }
    return {f"kafka.{name}": value for name, value in java.items()}


def _java_security(security: SecurityConfig) -> dict[str, str]:
    found: dict[str, str] = {"security.protocol": security.security_protocol}
    if security.sasl_mechanism == OAUTHBEARER:
        found |= _java_token(security)
    elif security.sasl_mechanism == AWS_MSK_IAM:
        found["sasl.mechanism"] = AWS_MSK_IAM
        found["sasl.jaas.config"] = f"{_MSK_IAM}.IAMLoginModule required;"
        found["sasl.client.callback.handler.class"] = f"{_MSK_IAM}.IAMClientCallbackHandler"
    elif security.sasl_mechanism and security.sasl_password:
        plain = security.sasl_mechanism == "PLAIN"
        found["sasl.mechanism"] = security.sasl_mechanism
        found["sasl.jaas.config"] = (
            f"{_PLAIN_MODULE if plain else _SCRAM_MODULE} required "
            f"username={jaas_quoted(security.sasl_username or '')} "
            f"password={jaas_quoted(security.sasl_password.get_secret_value())};"
        )
    if "SSL" not in security.security_protocol.split("_"):
        return found
    check = security.ssl_endpoint_identification
    found["ssl.endpoint.identification.algorithm"] = "" if check == "none" else check
    if security.ssl_ca_location:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = _pem(security.ssl_ca_location)
    if security.ssl_certificate_location and security.ssl_key_location:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _pem(security.ssl_certificate_location)
        found["ssl.keystore.key"] = _private_key(security.ssl_key_location)
        if security.ssl_key_password:
            found["ssl.key.password"] = security.ssl_key_password.get_secret_value()
    return found


def _java_token(security: SecurityConfig) -> dict[str, str]:
    """Tokens by OIDC's client credentials, which the client asks for anew in time."""
    secret = security.sasl_oauthbearer_client_secret
    options = {
        "clientId": security.sasl_oauthbearer_client_id or "",
        "clientSecret": secret.get_secret_value() if secret else "",
    }
    if security.sasl_oauthbearer_scope:
        options["scope"] = security.sasl_oauthbearer_scope
    for name, value in reveal(security.sasl_oauthbearer_extensions).items():
        options[f"extension_{name}"] = value
    if security.sasl_oauthbearer_ca_location:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = _pem(security.sasl_oauthbearer_ca_location)
    said = " ".join(f"{name}={jaas_quoted(value)}" for name, value in options.items())
    return {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": security.sasl_oauthbearer_token_endpoint_url or "",
        "sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required {said};",
    }


def jaas_quoted(value: str) -> str:
    """A value inside a JAAS line."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\r", "\\r").replace("\n", "\\n")
    return f'"{escaped}"'


def _pem(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace")
    if "-----BEGIN " not in text:
        raise InvalidConfig(
            [Mistake("kafka.security", f"{file} is not in PEM form", "convert it with openssl")]
        )
    return text


def _private_key(file: Path) -> str:
    text = _pem(file)
    if not any(begin in text for begin in _PKCS8):
        hint = f"run: openssl pkcs8 -topk8 -in {file} -out {file.stem}.pk8.pem"
        message = f"{file} is not in PKCS#8 form, the only one the Java client reads"
        raise InvalidConfig([Mistake("kafka.security.ssl_key_location", message, hint)])
    return text


def librdkafka_options(config: Config) -> dict[str, Any]:
    """Settings of confluent-kafka's clients.

    Raises:
        InvalidConfig: what signs tokens is not installed.
    """
    security = config.kafka.security
    found: dict[str, Any] = {
        "bootstrap.servers": config.kafka.bootstrap_servers,
        "client.id": f"lakemark-{config.name}",
        "security.protocol": security.security_protocol,
        # One line per lost connection is the client's; whether it matters is said by our errors.
        "log_level": 0,
    }
    if security.sasl_mechanism == OAUTHBEARER:
        found |= _librdkafka_token(security)
    elif security.sasl_mechanism == AWS_MSK_IAM:
        found |= _msk_iam_token(security)
    elif security.sasl_mechanism and security.sasl_password:
        found["sasl.mechanism"] = security.sasl_mechanism
        found["sasl.username"] = security.sasl_username
        found["sasl.password"] = security.sasl_password.get_secret_value()
    if "SSL" in security.security_protocol.split("_"):
        found["ssl.endpoint.identification.algorithm"] = security.ssl_endpoint_identification
        places = {
            "ssl.ca.location": security.ssl_ca_location,
            "ssl.certificate.location": security.ssl_certificate_location,
            "ssl.key.location": security.ssl_key_location,
        }
        found |= {name: str(file) for name, file in places.items() if file}
        if security.ssl_key_password:
            found["ssl.key.password"] = security.ssl_key_password.get_secret_value()
    return found | reveal(config.kafka.librdkafka)


def _librdkafka_token(security: SecurityConfig) -> dict[str, Any]:
    secret = security.sasl_oauthbearer_client_secret
    extensions = reveal(security.sasl_oauthbearer_extensions).items()
    found = {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": security.sasl_oauthbearer_token_endpoint_url,
        "sasl.oauthbearer.client.id": security.sasl_oauthbearer_client_id,
        "sasl.oauthbearer.client.secret": secret.get_secret_value() if secret else "",
        "sasl.oauthbearer.scope": security.sasl_oauthbearer_scope,
        "sasl.oauthbearer.extensions": ",".join(f"{name}={value}" for name, value in extensions),
        "https.ca.location": security.sasl_oauthbearer_ca_location,
    }
    return {name: str(value) for name, value in found.items() if value}


def _msk_iam_token(security: SecurityConfig) -> dict[str, Any]:
    if not msk_iam.is_installed():
        message = "AWS_MSK_IAM needs AWS's signer, which is not installed"
        hint = "pip install 'lakemark[msk-iam]', where lakemark runs and for Spark's workers"
        raise InvalidConfig([Mistake("kafka.security.sasl_mechanism", message, hint)])
    token = msk_iam.MskIamToken(security.sasl_aws_region or "")
    return {"sasl.mechanism": OAUTHBEARER, "oauth_cb": token}


def carried(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of librdkafka for tasks: with what certificates and keys say beside their files."""
    files = {name: Path(settings[name]) for name in _BY_VALUE if name in settings}
    said = {}
    for name, file in files.items():
        with suppress(OSError):  # the client says so, if it needs it
            if file.is_file():
                said[name] = file.read_text(encoding="utf-8", errors="replace")
    return {**settings, _SAID: said} if said else dict(settings)


def here(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`carried` settings in a task: the files if it may read them, else what they said."""
    found = dict(settings)
    for name, text in found.pop(_SAID, {}).items():
        if not os.access(found[name], os.R_OK):
            del found[name]
            found[_BY_VALUE[name]] = text
    return found


def by_offset(config: Config) -> dict[str, Any]:
    """Settings of a consumer that is assigned its partitions, commits nothing and joins no group.

    The client wants the name of a group all the same and asks the brokers who looks after it, which
    is an error to whoever may not read as that group: so it is the one that we need anyway.
    """
    return {
        **librdkafka_options(config),
        "group.id": owner_group(config),
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
