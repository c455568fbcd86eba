"""`database.url`, and what it says of encryption."""

import ssl

import pytest

from lakemark.connectors.mysql.mysql_url import DatabaseAddress
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import InvalidConfig


def address(url: str, password: str | None = None) -> DatabaseAddress:
    return DatabaseAddress.of(DatabaseConfig.model_construct(url=url, password=password))


def test_all_parts_of_an_address_are_read():
    found = address("mariadb://l%40ke@[::1]:3307/my%2Fshop?ssl-mode=required")
    assert (found.user, found.host, found.port) == ("l@ke", "::1", 3307)
    assert (found.database, found.ssl_mode) == ("my/shop", "required")


def test_what_is_not_said_is_as_usual():
    found = address("mysql://h")
    assert (found.user, found.port, found.database, found.ssl_mode) == ("", 3306, "", "preferred")
    assert found.ssl_context() is None


def test_the_password_is_never_shown():
    config = DatabaseConfig(url="mysql://u@h", password="geheim123")
    assert DatabaseAddress.of(config).password == "geheim123"
    assert "geheim123" not in repr(DatabaseAddress.of(config))


@pytest.mark.parametrize(
    ("mode", "verify", "hostname"),
    [
        ("required", ssl.CERT_NONE, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
    ],
)
def test_a_mode_says_what_is_checked_of_the_server(mode, verify, hostname):
    context = address(f"mysql://u@h?ssl-mode={mode}").ssl_context()
    assert (context.verify_mode, context.check_hostname) == (verify, hostname)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://h?sslmode=require",
        "mysql://h?ssl-mode=on",
        "mysql://h:99999/d",
        "mysql://h?ssl-mode=disabled&ssl-ca=/ca.pem",
    ],
)
def test_what_nobody_understands_is_refused_with_what_there_is(url):
    with pytest.raises(InvalidConfig) as caught:
        address(url)
    assert [problem.path for problem in caught.value.problems] == ["database.url"]


def test_a_file_that_is_not_there_is_no_certificate(tmp_path):
    given = address(f"mysql://h?ssl-ca={tmp_path}/none.pem")
    assert given.ssl_mode == "verify-ca"
    with pytest.raises(InvalidConfig):
        given.ssl_context()
