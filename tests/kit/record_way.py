"""Which modules a record enters on its way from the log into its table.

    python -m tests.kit.record_way FOLDER

A process of its own counts: what ran before and what is collected meanwhile have no part in it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, Shop, schema_of


def modules_entered(action: Callable[[], object]) -> list[str]:
    """Return the modules of lakemark of which a function is called while `action` runs.

    Those of `ops` are left out: they tell of a row and do nothing with it.
    """
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(str(frame.f_globals.get("__name__")))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    ours = {name for name in entered if name.startswith("lakemark.")}
    return sorted(name for name in ours if not name.startswith("lakemark.ops."))


def way_of_an_update(folder: Path) -> list[str]:
    """Return what an update of a row enters; `folder` gets the table."""
    shop = Shop(folder, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")})
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("u", 11, 1, v="b")
    way = modules_entered(shop.run)
    if shop.values() != {1: "b"}:
        raise SystemExit(f"the update did not arrive: {shop.values()}")
    return way


if __name__ == "__main__":
    print(*way_of_an_update(Path(sys.argv[1])), sep="\n")
