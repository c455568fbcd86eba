"""The settings of verification by itself: how often tables are compared with their database."""

from datetime import timedelta
from functools import cached_property
from typing import Final, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from lakemark.settings.patterns import JavaPattern, compile_java
from lakemark.settings.section import Section
from lakemark.settings.table_id import plain_of
from lakemark.settings.units import Duration, TableRegex

SHORTEST: Final = timedelta(seconds=1)
"""Between two runs of a table: shorter ones would be one run without an end."""


class VerifyConfig(Section):
    """The comparison of tables with their database, again and again, without a command."""

    every: Duration | None = Field(
        None, description="each table is compared so often, one after the other; unset: never"
    )
    rows_per_second: int = Field(
        20_000, ge=1, description="rows that are read from the database of a connector for it"
    )
    tables: list[TableRegex] = Field(
        [], description="full-match regular expressions of schema.table; default: all"
    )
    repair: bool = Field(default=False, description="mend what differs, as `--repair` does")

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.every is not None and self.every < SHORTEST:
            raise PydanticCustomError(
                "every", "verify.every must be 1s or longer; leave it out to verify by hand alone"
            )
        return self

    @cached_property
    def _patterns(self) -> tuple[JavaPattern, ...]:
        return tuple(compile_java(pattern) for pattern in self.tables)

    def chooses(self, table: str) -> bool:
        """Say whether a table is compared by itself, given its name."""
        if self.every is None:
            return False
        return not self.tables or any(p.matches(plain_of(table)) for p in self._patterns)
