"""Findings as tests look at them."""

from collections.abc import Iterable

from lakemark.model.findings import Finding, Verdict

OK, WARNING, ERROR = Verdict.OK, Verdict.WARNING, Verdict.ERROR


def of(found: Iterable[Finding], check: str, subject: str | None = None) -> list[Finding]:
    """Those of one check, and of one subject if one is given."""
    return [f for f in found if f.check == check and subject in (None, f.subject)]


def one(found: Iterable[Finding], check: str, subject: str | None = None) -> Finding:
    """The only one of a check and subject."""
    (finding,) = of(found, check, subject)
    return finding


def bad(found: Iterable[Finding]) -> list[Finding]:
    """Those that are not fine."""
    return [f for f in found if f.verdict is not OK]
