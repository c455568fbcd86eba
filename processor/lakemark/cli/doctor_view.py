"""The output of `lakemark doctor`: a line a finding, what mends it below; or JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.text import Text

from lakemark.cli.presentation import Hide, show_json, show_line
from lakemark.model.findings import SIGNS, Finding, Verdict, gathered
from lakemark.ops.terminal import shown
from lakemark.settings import masking

_COLOURS: Final = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.ERROR: "red"}
_WIDEST: Final = 44  # a longer subject shifts its own line only


def show(console: Console, findings: Sequence[Finding], *, as_json: bool, hide: Hide) -> None:
    """All findings; on a console, those that say the same share a line."""
    if as_json:
        show_json([masking.explained(_document(finding)) for finding in findings])
        return
    lines = gathered(findings)
    connectors = max((len(shown(f.connector)) for f in lines), default=0)
    checks = max((len(f.check) for f in lines), default=0)
    subjects = min(_WIDEST, max((len(shown(f.subject)) for f in lines), default=0))
    for finding in lines:
        line = Text(SIGNS[finding.verdict], style=_COLOURS[finding.verdict])
        subject = shown(finding.subject)
        if connectors:
            line.append(f" {shown(finding.connector):{connectors}} ", "default")
        line.append(f" {finding.check:{checks}}  {subject:{subjects}}  ", "default")
        line.append(shown(hide(finding.reason)), "default")
        console.print(line, highlight=False, soft_wrap=True)
        if finding.mend:
            show_line(console, f"    → {hide(finding.mend)}")
    counts = Counter(finding.verdict for finding in lines)
    total = ", ".join(f"{counts[verdict]} {SIGNS[verdict]}" for verdict in reversed(Verdict))
    console.print(total, markup=False, highlight=False)


def _document(finding: Finding) -> dict[str, str]:
    """Return a finding as JSON has it: it names a connector where there are several."""
    found = asdict(finding)
    return found if finding.connector else {n: v for n, v in found.items() if n != "connector"}
