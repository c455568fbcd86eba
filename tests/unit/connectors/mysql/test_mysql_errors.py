"""What the servers answer, in our words: of the table where it is the table's."""

import pymysql
import pytest
from pymysql import err

from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.errors import ConfigError, DependencyError, LakemarkError, TableError
from lakemark.settings.layers import InvalidConfig, LoginRefused

T = "shop.t"


def said(number: int, text: str = "cell value", table: str = T) -> LakemarkError:
    """Our error for one of the server's."""
    payload = b"\xff" + number.to_bytes(2, "little") + b"#HY000" + text.encode()
    with pytest.raises(LakemarkError) as caught, translated(table):
        err.raise_mysql_exception(payload)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (1317, DependencyError, "statement-timeout"),
        (1969, DependencyError, "statement-timeout"),
        (3024, DependencyError, "statement-timeout"),
        (1205, DependencyError, "table-locked"),
        (1213, DependencyError, "table-locked"),
        (1146, TableError, "table-gone"),
        (1049, TableError, "table-gone"),
        (1412, TableError, "schema-changed"),
        (1054, TableError, "schema-changed"),
        (1347, TableError, "not-a-table"),
        (1064, TableError, "query-failed"),
        (1366, TableError, "query-failed"),
        (1142, ConfigError, "configuration"),
        (1143, ConfigError, "configuration"),
        (1045, LoginRefused, "database-refused"),
        (1698, LoginRefused, "database-refused"),
        (1040, DependencyError, "database-unavailable"),
        (1053, DependencyError, "database-unavailable"),
        (1927, DependencyError, "database-unavailable"),
        (2013, DependencyError, "database-unavailable"),
    ],
)
def test_an_error_has_its_code_and_names_the_table_where_it_is_the_table_s(number, kind, code):
    found = said(number)
    assert (type(found), found.code) == (kind, code)
    if kind is TableError:
        assert T in found.message
        assert "cell value" not in found.message


@pytest.mark.parametrize("number", [1040, 1053, 2006, 2013])
def test_a_server_that_is_away_is_no_fault_of_a_table(number):
    for table in ("", T):
        assert said(number, table=table).code == "database-unavailable"


def test_a_default_database_that_is_not_there_is_the_address_s_fault():
    assert isinstance(said(1049, table=""), LoginRefused)


def test_a_missing_right_names_the_statement():
    assert "GRANT SELECT ON `shop`.`t`" in said(1142).hint


def test_a_certificate_that_does_not_suit_is_a_mistake_of_the_address():
    with pytest.raises(InvalidConfig), translated():
        raise err.OperationalError(2026, "SSL connection error: certificate verify failed")


def test_a_session_that_is_closed_is_away_and_a_mistake_of_ours_is_not():
    with pytest.raises(DependencyError), translated(T):
        raise err.InterfaceError(0, "")
    with pytest.raises(TableError), translated(T):
        raise pymysql.ProgrammingError("not enough arguments for format string")
