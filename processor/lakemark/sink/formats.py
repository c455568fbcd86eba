"""The formats of tables, by name. Nothing else imports the folder of one (`import_rule.SEALED`)."""

from collections.abc import Callable
from typing import Final

from lakemark.settings.config import DELTA, LakeConfig
from lakemark.sink.table_format import TableFormat


def _delta() -> TableFormat:
    from lakemark.sink.delta.delta_format import DeltaFormat  # noqa: PLC0415 - only what is used

    return DeltaFormat()


FORMATS: Final[dict[str, Callable[[], TableFormat]]] = {DELTA: _delta}
"""What makes each; its modules are imported then."""


def format_named(name: str) -> TableFormat:
    """Return a format by its name, as plans have it (`LakePlan.format`)."""
    return FORMATS[name]()


def format_of(lake: LakeConfig) -> TableFormat:
    """Return the format of the tables of a lake."""
    return format_named(lake.format)
