"""What the settings of converters, and ours before them, say of a registry."""

import pickle

import pytest

from lakemark.converters.avro.registry_settings import (
    RegistryLogin,
    RegistrySettings,
    TlsFiles,
    problems,
    settings_of,
)
from lakemark.errors import ConfigError
from lakemark.model.decoding import ConverterOptions
from lakemark.settings.cache import cache_dir

URL = "http://r:8081"
NATIVE = "http://r:8080/apis/registry/v2"


def options(value: dict | None = None, own: dict | None = None, key: dict | None = None):
    return ConverterOptions(
        *(None if told is None else tuple(told.items()) for told in (key, value)),
        own=tuple((own or {}).items()),
    )


def paths(*told: dict | None, **more: dict) -> dict[str, str]:
    return {p.path: p.message + p.hint for p in problems(options(*told, **more)) if not p.warning}


def test_the_connector_s_converter_says_all_that_is_needed():
    found = settings_of(options({"schema.registry.url": f" {URL}/ , http://s:8081"}))
    usual = cache_dir() / "schemas"
    assert found == RegistrySettings("compatible", (URL, "http://s:8081"), folder=usual)
    found = settings_of(options({"apicurio.registry.url": NATIVE}))
    assert (found.api, found.urls, found.numbers) == ("apicurio", (NATIVE,), "global")


def test_keys_alone_may_have_a_registry():
    assert settings_of(
        options({"schemas.enable": "false"}, key={"schema.registry.url": URL})
    ).urls == (URL,)


def test_ours_count_first():
    value = {
        "schema.registry.url": "http://inside:8081",
        "basic.auth.user.info": "theirs:hush",
        "apicurio.registry.use-id": "globalId",
    }
    own = {
        "apicurio.registry.url": NATIVE,
        "apicurio.registry.use-id": "contentId",
        "registry.timeout": "2s",
        "registry.grace": "0",
        "registry.folder": "/var/lib/schemas",
    }
    found = settings_of(options(value, own))
    assert (found.api, found.urls, found.numbers) == ("apicurio", (NATIVE,), "content")
    assert (found.timeout_s, found.grace_s, str(found.folder)) == (2, 0, "/var/lib/schemas")
    assert found.login == RegistryLogin("theirs", "hush")


@pytest.mark.parametrize(
    ("url", "use_id", "numbers"),
    [
        (NATIVE, None, "global"),
        (NATIVE, "contentId", "content"),
        (NATIVE.replace("v2", "v3"), None, "content"),
        (NATIVE.replace("v2", "v3"), "globalId", "global"),
    ],
)
def test_apicurio_s_converters_differ_in_what_they_write(url, use_id, numbers):
    more = {} if use_id is None else {"apicurio.registry.use-id": use_id}
    assert settings_of(options({"apicurio.registry.url": url, **more})).numbers == numbers


OAUTH = RegistryLogin(endpoint="https://id/t", client_id="me", client_secret="hush", scope="r")


@pytest.mark.parametrize(
    ("told", "login"),
    [
        ({}, RegistryLogin()),
        ({"basic.auth.user.info": "me:hush:4"}, RegistryLogin("me", "hush:4")),
        ({"schema.registry.basic.auth.user.info": "me:hush"}, RegistryLogin("me", "hush")),
        ({"schema.registry.url": "http://me:h%40@r:8081"}, RegistryLogin("me", "h@")),
        ({"bearer.auth.token": "t"}, RegistryLogin(token="t")),
        (
            {"bearer.auth.token": "t", "bearer.auth.logical.cluster": "c", "bearer.auth.identity.pool.id": "p"},
            RegistryLogin(token="t", headers=(("target-sr-cluster", "c"), ("Confluent-Identity-Pool-Id", "p"))),
        ),
        (
            {
                "bearer.auth.issuer.endpoint.url": "https://id/t", "bearer.auth.client.id": "me",
                "bearer.auth.client.secret": "hush", "bearer.auth.scope": "r",
            },
            OAUTH,
        ),
        ({"apicurio.auth.username": "me", "apicurio.auth.password": "hush"}, RegistryLogin("me", "hush")),
        (
            {"apicurio.registry.auth.username": "me", "apicurio.registry.auth.password": "hush"},
            RegistryLogin("me", "hush"),
        ),
        (
            {
                "apicurio.auth.service.token.endpoint": "https://id/t", "apicurio.auth.client.id": "me",
                "apicurio.auth.client.secret": "hush", "apicurio.auth.client.scope": "r",
            },
            OAUTH,
        ),
        (
            {
                "apicurio.registry.auth.service.token.endpoint": "https://id/t",
                "apicurio.registry.auth.client.id": "me",
                "apicurio.registry.auth.client.secret": "hush",
                "apicurio.registry.auth.client.scope": "r",
            },
            OAUTH,
        ),
    ],
)  # fmt: skip
def test_every_login_is_understood_from_either_place(told, login):
    address = {"schema.registry.url": URL}
    for found in (settings_of(options({**address, **told})), settings_of(options(address, told))):
        if "schema.registry.url" in told:
            assert found.urls == (URL,), "no address that is shown has a password"
        assert found.login == login
        assert "hush" not in repr(found)
        assert pickle.loads(pickle.dumps(found)) == found


def test_a_login_of_ours_has_nothing_of_the_connector_s():
    """A token of the connector would else win over a password that was set here against it."""
    value = {
        "schema.registry.url": URL,
        "bearer.auth.token": "theirs",
        "bearer.auth.logical.cluster": "c",
    }
    found = settings_of(options(value, {"basic.auth.user.info": "me:hush"}))
    assert found.login == RegistryLogin("me", "hush")


def test_files_for_tls(tmp_path):
    names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
    files = [tmp_path / name for name in names]
    for file in files:
        file.touch()
    own = {name: str(file) for name, file in zip(names, files, strict=True)}
    own |= {"schema.registry.url": "https://r", "ssl.key.password": "hush"}
    assert settings_of(options(own=own)).tls == TlsFiles(*map(str, files), "hush")
    files[0].unlink()
    assert "does not exist" in paths(None, own)["source.converter.ssl.ca.location"]
    own["ssl.ca.location"] = "ca.pem"
    assert "absolute" in paths(None, own)["source.converter.ssl.ca.location"]
    del own["ssl.ca.location"], own["ssl.certificate.location"]
    assert "of no use" in paths(None, own)["source.converter.ssl.key.location"]


@pytest.mark.parametrize(
    ("value", "own", "path", "words"),
    [
        ({}, {}, "source.converter", "no schema registry is named"),
        (
            {"apicurio.registry.url": "${file:x:y}"}, {},
            "value.converter.apicurio.registry.url", "set source.converter: {apicurio.registry.url:",
        ),
        ({}, {"schema.registry.url": "r:8081"}, "source.converter.schema.registry.url", "http://localhost:8081"),
        ({"schema.registry.url": "r:8081"}, {}, "value.converter.schema.registry.url", "http://localhost:8081"),
        ({"apicurio.registry.url": "http://r:8080"}, {}, "value.converter.apicurio.registry.url", "/apis/registry/v2"),
        ({"schema.registry.url": URL, "apicurio.registry.use-id": "both"}, {}, "value.converter.apicurio.registry.use-id", "contentId"),
        ({"schema.registry.url": URL}, {"registry.grace": "a while"}, "source.converter.registry.grace", "duration"),
        ({"schema.registry.url": URL}, {"registry.timeuot": "1s"}, "source.converter.registry.timeuot", "did you mean registry.timeout?"),
        ({"schema.registry.url": URL}, {"schema.registry.uri": URL}, "source.converter.schema.registry.uri", "did you mean schema.registry.url?"),
        ({"schema.registry.url": URL, "basic.auth.user.info": "${file:x:y}"}, {}, "value.converter.basic.auth.user.info", "source.converter: {basic.auth.user.info: '${file:"),
        ({"schema.registry.url": URL, "basic.auth.credentials.source": "SASL_INHERIT"}, {}, "value.converter.basic.auth.credentials.source", "basic.auth.user.info"),
        ({"schema.registry.url": URL}, {"basic.auth.user.info": "me"}, "source.converter.basic.auth.user.info", "without a password"),
        ({"schema.registry.url": URL}, {"apicurio.auth.username": "me"}, "source.converter.apicurio.auth.username", "without a password"),
        (
            {"schema.registry.url": URL}, {"bearer.auth.issuer.endpoint.url": "https://id/t"},
            "source.converter.bearer.auth.issuer.endpoint.url", "bearer.auth.client.id",
        ),
    ],
)  # fmt: skip
def test_mistakes_say_where_and_what_to_do(value, own, path, words):
    assert words in paths(value, own)[path]
    with pytest.raises(ConfigError):
        settings_of(options(value, own))


def test_a_placeholder_of_the_connector_is_no_mistake_where_ours_says_it():
    value = {"schema.registry.url": "${file:x:y}", "basic.auth.user.info": "${file:x:y}"}
    own = {"schema.registry.url": URL, "basic.auth.user.info": "me:hush"}
    assert paths(value, own) == {}


def test_other_settings_of_a_converter_are_none_of_the_registry_s():
    own = {"schema.registry.url": URL, "cipher": "7", "schemas.enable": "false"}
    assert paths(None, own) == {}


def test_two_registries_are_refused_and_one_with_two_spellings_is_not():
    value, key = {"schema.registry.url": URL}, {"schema.registry.url": "http://other:8081"}
    assert "another registry" in paths(value, key=key)["key.converter.schema.registry.url"]
    assert paths(value, {"schema.registry.url": URL}, key=key) == {}
    assert paths(value, key={"schema.registry.url": f"{URL}/"}) == {}


def test_a_store_of_java_is_warned_of():
    value = {
        "schema.registry.url": "https://r",
        "schema.registry.ssl.truststore.location": "/x.jks",
    }
    (problem,) = problems(options(value))
    assert (problem.warning, "ssl.ca.location" in problem.hint) == (True, True)


@pytest.mark.parametrize(
    ("value", "own", "registers"),
    [
        ({}, {}, True),
        ({"auto.register.schemas": "false"}, {}, False),
        ({"auto.register.schemas": "true"}, {}, True),
        ({"apicurio.registry.auto-register": "FALSE"}, {}, False),
        ({"auto.register.schemas": "false"}, {"auto.register.schemas": "true"}, True),
    ],
)
def test_whether_schemas_are_registered_is_as_the_converter_does_it(value, own, registers):
    told = options({"schema.registry.url": URL, **value}, own)
    assert settings_of(told).registers is registers
    assert not paths({"schema.registry.url": URL, **value}, own)
