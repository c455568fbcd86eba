"""Which modules a record enters on its way from the log into its table."""

import sys
import threading
from collections.abc import Callable
from types import FrameType


def modules_entered(action: Callable[[], object]) -> list[str]:
    """Return the modules of lakemark of which a function is called while `action` runs.

    Those of `ops` are left out: which of them write the log depends on what ran before.
    """
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(str(frame.f_globals.get("__name__")))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    ours = {name for name in entered if name.startswith("lakemark.")}
    return sorted(name for name in ours if not name.startswith("lakemark.ops."))
