"""How long the groups of tests take, for whoever shares them out: the longest begin first.

    python -m tests.kit.durations REPORT.xml

writes `tests/durations.json` anew from a report of `./dev test --junitxml=REPORT.xml`.
"""

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[1] / "durations.json"
LISTED_S: Final = 20.0
"""A shorter group is not listed: it fits in anywhere."""
SERVERS: Final = ("integration", "faults")
TOGETHER: Final = ("spark", "browser")
ALONE: Final = ("model",)
UNKNOWN_S: Final = 60.0
"""Of a new file that starts servers."""


def group_of(nodeid: str) -> str:
    """Return the group of a test: its file, its folder, or itself.

    Tests of one group run one after the other in one worker: those of a file, which may share
    servers, or what is made once for it; and those that share a browser or a JVM. Those of the
    model share nothing, and some take long: they are shared out one by one.
    """
    file = nodeid.removeprefix("tests/").partition("::")[0]
    folder = file.partition("/")[0]
    if folder in TOGETHER:
        return folder
    return nodeid if folder in ALONE else file


def ranked(file: Path = FILE) -> Callable[[str], float]:
    """Return what orders tests by their names: the longest groups first, as the file knows them."""
    known: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))

    def rank(nodeid: str) -> float:
        group = group_of(nodeid)
        return -known.get(group, UNKNOWN_S if group.startswith(SERVERS + TOGETHER) else 0.0)

    return rank


def measured(cases: Iterable[ET.Element]) -> dict[str, int]:
    """Return the seconds of each group that takes long, the longest first."""
    seconds = Counter[str]()
    for case in cases:
        module, _, kind = case.get("classname", "").partition(".Test")
        names = [f"Test{kind}"] if kind else []
        nodeid = "::".join([f"{module.replace('.', '/')}.py", *names, case.get("name", "")])
        seconds[group_of(nodeid)] += float(case.get("time", 0))
    return {group: round(took) for group, took in seconds.most_common() if took >= LISTED_S}


def main(report: str) -> None:
    """Write the file."""
    cases = ET.parse(report).getroot().iter("testcase")
    FILE.write_text(f"{json.dumps(measured(cases), indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
