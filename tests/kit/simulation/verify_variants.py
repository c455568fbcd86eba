"""Wrong comparisons of verify runs: as `variants`, each has one rule switched off."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lakemark.model.control import ORDER_MODE
from lakemark.reconcile import chunks, window
from lakemark.reconcile.state import ArmedRun, Window
from lakemark.sink import comparison
from tests.kit.simulation.history import History
from tests.kit.simulation.lake_version import LakeVersion
from tests.kit.simulation.pipeline import Pipeline
from tests.kit.simulation.variants import Variant
from tests.kit.simulation.verifying import RIGHT, verifying_failure
from tests.kit.simulation.world import draw

Patch = pytest.MonkeyPatch


class VerifyVariant(Variant):
    """A variant whose histories verify."""

    def history(self, seed: int) -> str | None:
        drawn = draw(seed)
        shape = replace(drawn.shape, **self.shape)
        return verifying_failure(seed, replace(drawn, **RIGHT, **self.world, shape=shape))


def _at_hi(patch: Patch) -> None:
    """Events between the open and the close row are no newer ones."""

    def span(now: Any, attempt: Any) -> Any:
        found = real(now, attempt)
        if found is None or not now.runs[attempt.run].verify:
            return found
        _, high = found
        return Window(open=high.close), high

    real = window._span
    patch.setattr(window, "_span", span)


def _newer_ignored(patch: Patch) -> None:
    """Rows are compared whatever has happened to them since they were read."""
    verifies = [False]

    def span(now: Any, attempt: Any) -> Any:
        verifies[0] = bool(now.runs[attempt.run].verify)
        return real_span(now, attempt)

    def decide(parts: Any, lo: bytes, touched: Any, *, truncated_at: bytes) -> Any:
        if verifies[0]:
            touched, truncated_at = touched.slice(0, 0), b""
        return real(parts, lo, touched, truncated_at=truncated_at)

    real, real_span = chunks.decide, window._span
    patch.setattr(window, "_span", span)
    patch.setattr(chunks, "decide", decide)


def _no_fence(patch: Patch) -> None:
    """Rows are compared when the close row is seen: late events are not in the table yet."""
    patch.setattr(ArmedRun, "waits", property(lambda self: self.mode == ORDER_MODE))


def _early_fence(patch: Patch) -> None:
    """The fence tells what is sent, and not what the table has."""

    def fence(self: History) -> None:
        if self.connector.at:
            position = self.connector.stream[self.connector.at - 1].position
            self.coordinator.say(type="fence", position=position.hex())

    patch.setattr(History, "fence", fence)


def _after_the_batch(patch: Patch) -> None:
    """A batch that is repeated compares with what it has mended already."""
    patch.setattr(Pipeline, "lake_before", lambda self, batch: LakeVersion.of(self.lake))


def _late_rows(patch: Patch) -> None:
    """Rows of the table from behind the position are compared."""

    def states(cdc: Any, position: bytes) -> Any:
        alive, newer = real(cdc, position)
        return alive, np.zeros_like(newer)

    real = comparison._states
    patch.setattr(comparison, "_states", states)


def _deleted_rows(patch: Patch) -> None:
    """Rows that are marked deleted are there."""

    def states(cdc: Any, position: bytes) -> Any:
        alive, newer = real(cdc, position)
        return np.ones_like(alive), newer

    real = comparison._states
    patch.setattr(comparison, "_states", states)


def _stopped_counts(patch: Patch) -> None:
    """Chunks that came while the table stood still count, and are never compared."""
    patch.setattr(Pipeline, "counts", lambda self, done: True)


_CALM: Any = {"stops": False, "reads": False, "crashes": 0.0, "slow": False, "loses": False}
_TABLE: Any = {**_CALM, "order": False}
VERIFY_VARIANTS = {
    "compared at the close row": VerifyVariant(_at_hi, _TABLE),
    "newer events are ignored": VerifyVariant(_newer_ignored, _TABLE),
    "compared without a fence": VerifyVariant(_no_fence, {**_TABLE, "lags": True}),
    "the fence tells what is sent": VerifyVariant(_early_fence, {**_TABLE, "lags": True}),
    "compared with what the batch has mended": VerifyVariant(
        _after_the_batch, {**_CALM, "crashes": 0.2}
    ),
    "rows from behind the position are compared": VerifyVariant(_late_rows, _TABLE),
    "rows that are marked deleted are there": VerifyVariant(
        _deleted_rows, {**_TABLE, "soft": True}
    ),
    "comparisons of a stopped table count": VerifyVariant(
        _stopped_counts, {**_TABLE, "stops": True}
    ),
}
