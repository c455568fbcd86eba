"""What the database answers, in our words: of the table where it is the table's."""

import pytest
from psycopg import errors

from lakemark.connectors.postgres.postgres_session import translated
from lakemark.errors import ConfigError, DependencyError, TableError
from tests.kit.shop import ORDERS


@pytest.mark.parametrize(
    "error",
    [
        errors.IoError,
        errors.UndefinedFile,
        errors.ObjectNotInPrerequisiteState,
        errors.StatementTooComplex,
        errors.DataCorrupted,
        errors.InvalidTextRepresentation,
    ],
)
def test_a_table_that_cannot_be_read_is_named_and_the_database_is_not_away(error):
    with pytest.raises(TableError) as caught, translated(ORDERS):
        raise error("could not read block 7 of a file: cell value")
    assert caught.value.code == "query-failed"
    assert ORDERS in caught.value.message
    assert str(error.sqlstate) in caught.value.message
    assert "cell value" not in caught.value.message


def test_a_right_that_is_missing_names_the_table_and_the_grant():
    with pytest.raises(ConfigError) as caught, translated(ORDERS):
        raise errors.InsufficientPrivilege("permission denied for table orders")
    assert ORDERS in caught.value.message
    assert "GRANT SELECT" in caught.value.hint


@pytest.mark.parametrize("table", ["", ORDERS])
@pytest.mark.parametrize(
    "error", [errors.AdminShutdown, errors.CannotConnectNow, errors.TooManyConnections]
)
def test_a_database_that_is_away_is_no_fault_of_a_table(error, table):
    with pytest.raises(DependencyError) as caught, translated(table):
        raise error("it shuts down")
    assert caught.value.code == "database-unavailable"
