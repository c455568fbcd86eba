"""Differences planted in a lake, beside the pipeline that writes it."""

from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError


def change(path: str, work: Callable[[DeltaTable], Any]) -> None:
    """Have a Delta table changed by somebody else; tried again where the pipeline was faster."""
    for _ in range(20):
        try:
            work(DeltaTable(path))
        except CommitFailedError:
            continue
        return
    raise AssertionError("the pipeline commits all the time")
