"""`./dev demo` as somebody new runs it, with a smaller shop: it ends well and says what its page says."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.kit.documents import DOCS, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

SCALE = "0.2"
"""Of the rows; there are as many chunks as always, to pause and to kill lakemark among."""
DEADLINE_S = 1800  # it took 380 s beside two other workers on two cores
STOPPED, SLOW = "writes have stopped", "this machine is slow: no more changes"


def promised() -> list[str]:
    """What its page says one sees, in its order."""
    section = (DOCS / "demo.md").read_text(encoding="utf-8").partition("| you see |")[2]
    table = section.partition("\n\n")[0].splitlines()[2:]
    return [said for row in table for said in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_demo_ends_well_and_shows_what_its_page_promises():
    command = [sys.executable, "-m", "stack.cli", "demo", "--scale", SCALE]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        try:
            shown, _ = demo.communicate(timeout=DEADLINE_S)
        finally:
            demo.terminate()  # it ends what it has started
    assert demo.returncode == 0, shown[-8000:]
    shutil.rmtree(ROOT / ".lakemark" / f"demo-{demo.pid}")
    assert len(promised()) > 10
    rest, phrases = shown, promised()
    if SLOW in shown:  # it has stopped writing earlier, and said so
        assert STOPPED in shown
        phrases.remove(STOPPED)
    for phrase in phrases:
        before, found, rest = rest.partition(phrase)
        assert found, f"{phrase!r} does not come after the phrase before it:\n{before[-3000:]}"
