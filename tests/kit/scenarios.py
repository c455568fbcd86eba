"""The reconciler's truth tables, `tests/golden/scenarios.yaml`: its notation stands at its head.

Cells: `a/B` are the columns b (text) and c (bytes, TOAST) of the model's table, `a` is b alone,
`a/?` has Debezium's placeholder in c.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.kit.log_model import PLACEHOLDER, Row

PATH = Path(__file__).parent.parent / "golden" / "scenarios.yaml"

_MARKER = re.compile(r"([LH])(\w*)@(\d+)(?:\(l=(\d+)\))?")
_CHANGE = re.compile(
    r"([cudt])(?: (\d+))?(?:=(\S+))? @(\d+)(?:#\d+)?(?:\(l=(\d+)\))?"
    r"(?: x=\d+)?(?: new=(\d+))?(?: old=(\d+))?"
)
_ARRIVAL = re.compile(r"(?:(A)|([LHCMF])(\w*)(?:\((?:rows=)?(\d+)\))?|([cudt])@(\d+))")
_SUFFIX = {"run1": "1", "run2": "2", "att1": "1", "att2": "2", "keys": "2"}
# S15 is S14 with another order of arrival: it names neither its window nor S0 again.
_MARKERS = ("L@100", "H@110")
_XMAX = 80


@dataclass(frozen=True)
class Change:
    """An event: `op key=cells @at`, at the change LSN `lsn`; `new` and `old` are of key changes."""

    op: str
    at: int
    lsn: int
    key: int | None = None
    cells: str | None = None
    new: int | None = None
    old: int | None = None


@dataclass(frozen=True)
class Marker:
    """A row of a window: L opens it, H closes it."""

    end: Literal["open", "close"]
    window: str
    at: int
    lsn: int


Entry = Change | Marker


@dataclass(frozen=True)
class Reading:
    """One SELECT, `label` is that of its C and M. Attempts of one chunk share `run` and `chunk`."""

    label: str
    run: str
    chunk: int
    rows: dict[int, str]
    lo: str
    hi: str


@dataclass(frozen=True)
class Arrival:
    """Something to be consumed: A arms, C are rows (`keys` of them), M a manifest, F a fence.

    An entry of the log has kind "" and its place `at` there.
    """

    kind: str
    label: str = ""
    at: int = -1
    keys: frozenset[int] | None = None


@dataclass(frozen=True)
class Scenario:
    """One truth table.

    Attributes:
        src: rows of the source before the log.
        order: what arrives, in this order; empty = as the notation's head says.
        seen: the chunk's own snapshot, as PostgreSQL writes it, and S0 of the open row; empty =
            commits are visible in their order.
        breaks: name of the wrong rule that must fail here.
    """

    id: str
    src: dict[int, str]
    log: tuple[Entry, ...]
    readings: tuple[Reading, ...]
    order: tuple[Arrival, ...]
    final: dict[int, str]
    seen: str
    breaks: str

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """All that arrives; by default arming, the log with chunks before their close row, F."""
        found = [Arrival("A")]
        for at, entry in enumerate(self.log):
            if isinstance(entry, Marker) and entry.end == "close":
                for one in self.readings:
                    if one.hi == entry.window:
                        found += [Arrival("C", one.label), Arrival("M", one.label)]
            found.append(Arrival("", at=at))
        return self.order or (*found, Arrival("F"))

    def source(self) -> dict[int, str]:
        """The source's rows after the log."""
        rows = dict(self.src)
        known = dict(rows)  # also rows that a key change has just taken away
        for change in self.log:
            if isinstance(change, Marker):
                continue
            key = change.key
            if change.op == "t" or key is None:
                rows.clear()
            elif change.cells is None:
                rows.pop(key, None)
            else:
                before = known.get(key if change.old is None else change.old, "")
                rows[key] = change.cells.replace("?", before.partition("/")[2])
                known[key] = rows[key]
        return rows

    def with_older_window(self) -> "Scenario":
        """The same with a window "0" that was opened before everything."""
        assert not self.order
        return replace(self, log=(Marker("open", "0", 90, 90), *self.log))


@cache
def scenarios() -> dict[str, Scenario]:
    """All of the file, by id."""
    return {given["id"]: _scenario(given) for given in yaml.safe_load(PATH.read_text())}


def row_of(key: int, cells: str) -> Row:
    """The row that stands for cells."""
    b, _, c = cells.partition("/")
    stored = PLACEHOLDER if c == "?" else c
    return {"id": key, "a": None, "b": b, "c": stored.encode() if c else None}


def cells_of(row: dict[str, Any]) -> str:
    """Inverse of `row_of`, also of rows of the lake with unavailable columns."""
    absent = (row.get("_cdc") or {}).get("unavailable") or ()
    b, c = (
        "?" if name in absent else value.decode() if isinstance(value, bytes) else value
        for name, value in ((name, row.get(name)) for name in ("b", "c"))
    )
    return str(b) if c is None else f"{b}/{c}"


def _scenario(given: dict[str, Any]) -> Scenario:
    texts = [str(text) for text in given["log"]]
    if not any(text.startswith("L") for text in texts):
        texts += _MARKERS
    log = tuple(_entry(text) for text in texts)
    arrivals = (one for text in given.get("arr", ()) for one in _arrival(str(text), log))
    return Scenario(
        given["id"], _rows(given["src"]), log, _readings(given["chunk"], log), tuple(arrivals),
        _rows(given["final"]), _seen(given.get("snap")), given["breaks"],
    )  # fmt: skip


def _rows(given: dict[int, Any]) -> dict[int, str]:
    return {key: str(cells) for key, cells in given.items() if key != "lo"}


def _entry(text: str) -> Entry:
    if match := _MARKER.fullmatch(text):
        kind, window, at, lsn = match.groups()
        return Marker("open" if kind == "L" else "close", window, int(at), int(lsn or at))
    match = _CHANGE.fullmatch(text)
    assert match is not None, text
    op, key, cells, at, lsn, new, old = match.groups()
    number = [None if found is None else int(found) for found in (key, new, old)]
    return Change(op, int(at), int(lsn or at), number[0], cells, number[1], number[2])


def _readings(given: dict[Any, Any], log: tuple[Entry, ...]) -> tuple[Reading, ...]:
    if not any(isinstance(value, dict) for value in given.values()):
        return (Reading("", "run", 0, _rows(given), "", ""),)
    found = []
    for number, (name, rows) in enumerate(given.items()):
        label = _SUFFIX.get(name, name)
        opens = [entry for entry in log if isinstance(entry, Marker) and entry.end == "open"]
        low = next(e for e in opens if ("lo" in rows and e.at == rows["lo"]) or e.window == label)
        closes = [entry for entry in log if isinstance(entry, Marker) and entry.end == "close"]
        own = [entry for entry in closes if entry.window == low.window]
        high = (own or [entry for entry in closes if entry.at > low.at])[0]
        run = name if name.startswith("run") or name == "keys" else "run"
        chunk = number if name in {"A", "B"} else 0
        found.append(Reading(label, run, chunk, _rows(rows), low.window, high.window))
    return tuple(found)


def _arrival(text: str, log: tuple[Entry, ...]) -> list[Arrival]:
    match = _ARRIVAL.fullmatch(text)
    assert match is not None, text
    arms, kind, label, number, op, at = match.groups()
    if arms:
        return [Arrival("A")]
    if op:
        events = enumerate(log)
        found = [n for n, e in events if isinstance(e, Change) and (e.op, e.at) == (op, int(at))]
        assert found, text
        return [Arrival("", at=n) for n in found]
    if kind in {"L", "H"}:
        end = "open" if kind == "L" else "close"
        marked = [(e.end, e.window) if isinstance(e, Marker) else None for e in log]
        return [Arrival("", at=marked.index((end, label)))]
    keys = frozenset({int(number)}) if kind == "C" and number else None
    return [Arrival(kind, label, keys=keys)]


def _seen(given: dict[str, Any] | None) -> str:
    if given is None:
        return ""
    running = given["xip"]
    xmin, xmax = given.get("xmin", min(running)), given.get("S0xmax", _XMAX)
    return f"{xmin}:{xmax}:{','.join(map(str, running))}"
