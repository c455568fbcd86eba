"""The findings of the checks of `lakemark doctor`.

verdict   sign   meaning
-------   ----   -------------------------------------------------------------------
ok        ✓      as it should be
warning   !      it runs like this, but somebody should know
error     ✗      something does not work or loses data; the command ends with 1
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from lakemark.errors import LakemarkError
from lakemark.settings.layers import InvalidConfig, Mistake


class Verdict(StrEnum):
    """The gravity of a finding; the table is in the module's docstring."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


SIGNS: Final[Mapping[Verdict, str]] = {Verdict.OK: "✓", Verdict.WARNING: "!", Verdict.ERROR: "✗"}

SKEW_S: Final = 5.0
"""Clocks further apart than this are worth a warning: ages and lags are wrong by as much."""

_SHOWN: Final = 3  # subjects named when several share a line


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of one check.

    Attributes:
        check: what was looked at, such as ``topic`` or ``replica identity``.
        subject: of what: a topic, a table, an address; may be empty.
        verdict: how grave.
        reason: what was found, never a cell value.
        mend: the exact statement, command or setting that mends it; empty when nothing is to do.
        connector: of which of several connectors; empty where there is one, or it is of all.
    """

    check: str
    subject: str
    verdict: Verdict
    reason: str
    mend: str = ""
    connector: str = ""


def fine(check: str, subject: str, reason: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(check, subject, Verdict.OK, reason)


def warning(check: str, subject: str, reason: str, mend: str = "") -> Finding:
    """Return the finding of what runs, but somebody should know."""
    return Finding(check, subject, Verdict.WARNING, reason, mend)


def wrong(check: str, subject: str, reason: str, mend: str = "") -> Finding:
    """Return the finding of what does not work, or loses data."""
    return Finding(check, subject, Verdict.ERROR, reason, mend)


def of_problem(check: str, subject: str, problem: Mistake) -> Finding:
    """A problem that another module has named already."""
    verdict = Verdict.WARNING if problem.warning else Verdict.ERROR
    return Finding(check, subject, verdict, problem.message, problem.hint)


def of_error(check: str, subject: str, error: LakemarkError) -> list[Finding]:
    """An error as findings: every problem of an invalid configuration is one."""
    if isinstance(error, InvalidConfig) and error.problems:
        return [of_problem(check, subject or p.path, p) for p in error.problems]
    return [wrong(check, subject, error.message, error.hint)]


def unchecked(checks: Iterable[str], why: str) -> list[Finding]:
    """Checks that could not be made, each an error: nobody may take silence for health."""
    return [wrong(check, "", f"not checked: {why}") for check in checks]


def clock(whose: str, skew_s: float | None) -> Finding:
    """Return the finding about another machine's clock: whether it agrees with ours.

    Args:
        whose: the machine, such as ``database``.
        skew_s: by how much its clock is ahead of ours; None if it does not say the time.
    """
    if skew_s is None:
        return fine("clock", whose, "it does not say the time")
    if abs(skew_s) <= SKEW_S:
        return fine("clock", whose, f"agrees with ours to {max(1, round(abs(skew_s)))} s")
    direction = "ahead of" if skew_s > 0 else "behind"
    return warning(
        "clock",
        whose,
        f"is {abs(skew_s):.0f} s {direction} ours: ages and lags are wrong by as much, "
        "order is not",
        "let NTP keep both clocks (timedatectl set-ntp true)",
    )


def gathered(findings: Sequence[Finding]) -> list[Finding]:
    """Return them with those that say the same but for their subject as one, where the first was.

    In one that stands for several, TABLE stands for the name.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        texts = (without(finding.subject, text) for text in (finding.reason, finding.mend))
        key = (finding.connector, finding.check, finding.verdict, *texts)
        groups.setdefault(key, []).append(finding)
    shown = []
    for (*_, reason, mend), found in groups.items():
        if len(found) == 1:
            shown += found
            continue
        subjects = named([finding.subject for finding in found])
        shown.append(replace(found[0], subject=subjects, reason=reason, mend=mend))
    return shown


def without(name: str, text: str) -> str:
    """Return a text with TABLE in place of a table's name, so that others may share it."""
    if not name or name not in text:
        return text
    return re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", "TABLE", text)


def named(subjects: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(subjects) - _SHOWN
    names = ", ".join(subjects[:_SHOWN])
    return f"{names} and {more:,} more" if more > 0 else names
