"""The pictures of RESULTS.md, from the JSON files; the same files give the same bytes.

    python bench/plots.py FOLDER NAME…

Run by `./dev bench results`, with matplotlib from requirements-bench.lock and nothing of ours.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = dict[str, Any]

SETTINGS: Final = {
    "svg.hashsalt": "lakemark",  # names inside the SVG would be drawn by dice
    "figure.figsize": (8, 4.5),
    "figure.dpi": 120,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
}
# Ours in blue; told apart without colours by their markers.
STYLES: Final = {
    "lakemark-deletion-vectors": ("#0b5394", "o"),
    "lakemark-task-merge": ("#6fa8dc", "s"),
    "usual": ("#cc4125", "^"),
    "paimon": ("#e69138", "D"),
    "delta-rs": ("#6aa84f", "v"),
}
OTHER: Final = ("#777777", "x")
IDLE: Final = "#0b5394"
BUSY: Final = "#e69138"
WRONG: Final = " (table wrong)"


def series(axes: Axes, rows: Sequence[Row]) -> None:
    """Seconds for as many events against the size of the table, one line for each contestant.

    What is calculated goes on from the line as dots.
    """
    for who in dict.fromkeys(row["who"] for row in rows):
        own = sorted((row for row in rows if row["who"] == who), key=lambda row: row["start_rows"])
        points, further = (
            [
                (row["start_rows"], row["seconds_for_batch"])
                for row in own
                if row["start_rows"] and row["seconds_for_batch"]
                and row.get("calculated", False) is calculated
            ]
            for calculated in (False, True)
        )  # fmt: skip
        if points:
            colour, marker = STYLES.get(who, OTHER)
            right = all(row["correct"] for row in own)
            axes.plot(
                *zip(*points, strict=True),
                color=colour, marker=marker, label=who if right else who + WRONG,
                linestyle="-" if right else "--",
            )  # fmt: skip
        if further:
            beyond = zip(points[-1], *further, strict=True)
            axes.plot(*beyond, color=colour, linestyle=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="rows in the table before the first event; dots: calculated",
    )
    axes.set_ylabel("seconds for as many events as a batch has")
    axes.legend()


def small(axes: Axes, rows: Sequence[Row]) -> None:
    """Steady events a second, one bar for each contestant."""
    known = [row for row in rows if row["steady_events_per_s"]]
    bars = axes.barh(
        [row["who"] + ("" if row["correct"] else WRONG) for row in known],
        [row["steady_events_per_s"] for row in known],
        color=[STYLES.get(row["who"], OTHER)[0] for row in known],
    )
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("events a second, without the first batch")
    axes.xaxis.set_major_formatter("{x:,.0f}")


def snapshot(axes: Axes, rows: Sequence[Row]) -> None:
    """Rows a second, idle and busy, one pair of bars for each contestant."""
    known = [row for row in rows if row["rows"]]
    names = list(dict.fromkeys(row["who"].removesuffix(" busy") for row in known))
    for busy, colour, shift in ((False, IDLE, -0.2), (True, BUSY, 0.2)):
        alike = [row for row in known if row["who"].endswith(" busy") is busy]
        bars = axes.barh(
            [names.index(row["who"].removesuffix(" busy")) + shift for row in alike],
            [row["rows_per_s"] for row in alike],
            height=0.4, color=colour, label="beside a workload" if busy else "idle",
        )  # fmt: skip
        labels = [
            f"{row['rows_per_s']:,}" + (WRONG if row["correct"] is False else "") for row in alike
        ]
        axes.bar_label(bars, labels=labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), [titled(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("rows a second")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower right")


def titled(name: str) -> str:
    """A contestant of `snapshot` as people would call it."""
    who, _, number = name.partition(" ")
    if who == "debezium":
        return f"Debezium, chunks of {int(number):,}"
    if who == "lakemark":
        return f"lakemark, parallelism {number}"
    return {"copy": "COPY", "copy, parquet": "COPY, and Parquet"}.get(name, name)


DRAWN: Final[dict[str, Callable[[Axes, Sequence[Row]], None]]] = {
    "series": series,
    "small": small,
    "snapshot": snapshot,
}


def draw(folder: Path, name: str) -> None:
    """Draws one picture beside its JSON file, as PNG and as SVG."""
    found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    rows = found["rows"] + [{**row, "calculated": True} for row in found.get("calculated", ())]
    figure = Figure()
    DRAWN[name](figure.add_subplot(), rows)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})


if __name__ == "__main__":
    mpl.rcdefaults()
    mpl.rcParams.update(SETTINGS)
    for wanted in sys.argv[2:]:
        draw(Path(sys.argv[1]), wanted)
