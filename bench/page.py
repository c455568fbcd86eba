"""RESULTS.md from the JSON files of the benchmarks, pure: every figure is one of theirs.

What is calculated are ratios of two of these figures. What has no JSON file is named as not
measured.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.report import cell, ratios, size_of

Found = Mapping[str, Any]  # what a benchmark has written

LONGEST: Final = 300  # characters of what is wrong
CONTEST: Final = {
    "correct": "correct",
    "start_rows": "rows before",
    "tables": "tables",
    "who": "",
    "events_per_s": "events/s",
    "steady_events_per_s": "steady events/s",
    "seconds_for_batch": "s for as many as a batch",
    "seconds_per_batch": "s/batch",
    "seconds": "s in all",
    "cpu_seconds": "CPU s",
    "peak_rss_mb": "peak MB",
    "written_per_byte": "bytes written per byte read",
    "read_seconds": "s to read the table",
}
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "stream": CONTEST,
    "tables": CONTEST,
    "rate": {
        "correct": "correct",
        "tables": "tables",
        "who": "",
        "offered_per_s": "events/s written",
        "late_p50": "p50, s late",
        "late_p99": "p99",
        "late_first_half": "p50, first half",
        "late_second_half": "p50, second half",
        "events_per_batch": "events/batch",
        "seconds_per_batch": "s/batch",
        "cores_used": "cores used",
        "peak_rss_mb": "peak MB",
    },
    "far": {
        "correct": "correct",
        "tables": "tables",
        "who": "",
        "seconds_per_batch": "s/batch",
        "requests": "requests for a table",
    },
    "snapshot": {
        "correct": "correct",
        "who": "",
        "rows": "rows",
        "rows_per_s": "rows/s",
        "seconds": "s",
        "lag_s": "lag of the log, s",
    },
    "verify": {
        "correct": "correct",
        "who": "",
        "rows": "rows",
        "rows_per_s": "rows/s",
        "seconds": "s",
        "cpu_seconds": "CPU s",
        "peak_rss_mb": "peak MB",
        "lag_s": "lag of the log, s",
    },
    "latency": {
        "correct": "all seen",
        "who": "",
        "what": "figure",
        "count": "rows",
        "p50": "p50, or the figure",
        "p99": "p99",
        "lost": "never seen",
    },
    "cluster": {
        "correct": "correct",
        "who": "for",
        "count": "of",
        "driver_bytes": "bytes to the driver",
        "shuffled_bytes": "bytes shuffled",
        "driver_us": "driver, CPU µs",
        "workers_us": "workers, CPU µs",
    },
}
MEASURES: Final[Mapping[str, Sequence[str]]] = {
    "stream": ("events_per_s", "steady_events_per_s", "cpu_seconds", "read_seconds"),
    "tables": ("events_per_s", "seconds_per_batch", "cpu_seconds"),
    "rate": ("late_p50", "late_p99", "cores_used"),
    "far": ("seconds_per_batch", "requests"),
    "snapshot": ("rows_per_s",),
    "verify": (),
    "latency": (),
    "cluster": (),
}
HEAD: Final = """\
# Results

Written by `./dev bench results` from the files in `results/`, which hold all figures; not by hand. What each figure
means, and who the contestants are, is in `README.md` beside this file. `NO` is a result that is wrong: a table that is
not equal to its source, or rows that never came. `-` was not measured, or cannot be.
"""
WHERE: Final = """\
Where the processors' time goes in one more run, by stage; what the stages are is at the head of `where.py`:
"""
STAGES: Final = {"stage": "stage", "cpu_seconds": "CPU s", "percent": "%"}
BEYOND: Final = """\
Not measured but calculated, by the line through the two largest tables. With deletion vectors it rises by 4.6 ms for
every million rows at least: that is what it takes to look for 200,000 keys in an index. It holds as long as the index
of the table's keys fits into the 4 GiB that a machine keeps: some 300 million rows with one integer as key. Beyond that
indexes are made again from the files, in every batch that has keys everywhere:
"""
IN_MIND: Final = """\
## What to keep in mind

- One machine, one run after the other. Broker, database, Spark and Python workers share its cores; so does anything
  else that runs: see the load before.
- Figures of several rounds are medians. Ratios are of figures as they are shown here.
- Paimon's action makes every column a text without schemas in the topic, and NULL the text `null`, which no reader can
  tell from such a text. Where only the column `note` is named under a table, its `NO` is for that. It has no limit per
  batch but an interval of checkpoints: compare *s for as many as a batch*, not *s/batch*.
- The usual pipeline, Paimon and delta-rs have no answer to all of replays, key changes, unavailable (TOAST) values,
  truncates and bad records, and no place for snapshots. None of these occur in the events.
- Debezium's snapshot rows end in Kafka, lakemark's in Delta. COPY ends nowhere, or in one Parquet file.
- Pages of memory that processes share count once for each process.
- Local disk, but for the section about an object store; local mode, but for the section about a cluster.
"""


@dataclass(frozen=True, slots=True)
class Published:
    """A benchmark whose figures are published.

    Attributes:
        name: of its JSON file and its picture.
        bench: the benchmark.
        options: what it is run with, but for `--json`.
        title: heading of its section.
        picture: what its picture shows; empty if it has none.
    """

    name: str
    bench: str
    options: tuple[str, ...]
    title: str
    picture: str = ""

    @property
    def file(self) -> str:
        """Its JSON file, from the root of the repository."""
        return f"bench/results/{self.name}.json"

    @property
    def command(self) -> tuple[str, ...]:
        """What runs it."""
        return ("./dev", "bench", self.bench, *self.options, "--json", self.file)


def document(
    published: Sequence[Published], found: Mapping[str, Found], pictures: Collection[str]
) -> str:
    """The report.

    Args:
        published: the benchmarks, in the order of their sections.
        found: what their JSON files hold, by name; those that are not there are not measured.
        pictures: names of the benchmarks whose picture is there.
    """
    there = {one.name: found[one.name] for one in published if one.name in found}
    parts = [HEAD]
    if there:
        parts += [_machines(there), _versions(there)]
    for one in published:
        parts.append(_section(one, there.get(one.name), has_picture=one.name in pictures))
    return "\n".join([*parts, IN_MIND])


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a row of any benchmark says that a result is wrong."""
    return row.get("correct") is False or bool(row.get("lost"))


def _machines(found: Mapping[str, Found]) -> str:
    """When and where; one line for each, for they need not be made at once."""
    columns = {"name": "", "begun": "begun (UTC)", "cpu": "CPU", "cores": "cores",
               "memory_mb": "memory, MB", "system": "system", "load": "load before"}  # fmt: skip
    rows = []
    for name, one in found.items():
        machine = one["machine"]
        load = " ".join(map(str, machine.get("load_before", ()))) or None
        rows.append({"name": name, **machine, "load": load})
    return f"## When and where\n\n{_table(rows, columns)}"


def _versions(found: Mapping[str, Found]) -> str:
    """Each version once; where they differ, whose it is."""
    names = dict.fromkeys(name for one in found.values() for name in one["versions"])
    rows = []
    for name in names:
        of: dict[str, list[str]] = {}
        for who, one in found.items():
            if name in one["versions"]:
                of.setdefault(one["versions"][name], []).append(who)
        texts = [v if len(of) == 1 else f"{v} ({', '.join(who)})" for v, who in of.items()]
        rows.append({"name": name, "version": "; ".join(texts)})
    return f"## Versions\n\n{_table(rows, {'name': '', 'version': 'version'})}"


def _section(one: Published, found: Found | None, *, has_picture: bool) -> str:
    parts = [f"## {one.title}\n"]
    if found is None:
        return "\n".join([*parts, f"Not measured. `./dev bench results --only {one.name}`\n"])
    parts.append(_command(one, found))
    settings = ", ".join(f"{name} {_setting(value)}" for name, value in found["settings"].items())
    parts += [f"With: {settings}.\n", _table(_rows(one.bench, found["rows"]), COLUMNS[one.bench])]
    parts += _wrong(found.get("wrong", ()))
    if found.get("calculated"):
        parts += [BEYOND, _table(found["calculated"], COLUMNS[one.bench])]
    compared = _ratios(one.bench, found["rows"])
    if compared:
        headings = {measure: COLUMNS[one.bench][measure] for measure in MEASURES[one.bench]}
        sides = {"ours_correct": "correct", "start_rows": "rows before", "tables": "tables",
                 "ours": "", "other": "times better than",
                 "other_correct": "that is correct"}  # fmt: skip
        parts.append(_table(compared, {**sides, **headings}))
    if found.get("where"):
        parts += [WHERE, _table(found["where"], STAGES)]
    if has_picture:
        parts.append(
            f"![{one.picture}](results/{one.name}.svg)\n\n"
            f"{one.picture} ([PNG](results/{one.name}.png))\n"
        )
    return "\n".join(parts)


def _command(one: Published, found: Found) -> str:
    """As it was run, which is not always as it would be run now."""
    command = found.get("command")
    if command is None:
        return "The command was not recorded: not made by `./dev bench results`.\n"
    text = f"    {' '.join(command)}\n"
    if tuple(command) != one.command:
        text += "\nThese figures are older than the options that `./dev bench results` has now.\n"
    return text


def _rows(bench: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what stands in for a figure."""
    shown = [dict(row) for row in rows]
    for row in shown:
        if bench in {"snapshot", "verify"} and not row["rows"]:  # the log's lag alone
            row.update(rows=None, seconds=None, rows_per_s=None)
        if bench == "latency":
            many = row["count"] > 1 or row["lost"]
            row["correct"] = not row["lost"] if many else None
            if not many:
                row.update(count=None, p99=None, lost=None)
    if not any(row.get("start_rows") for row in shown):
        for row in shown:
            row["start_rows"] = None
    return shown


def _ratios(bench: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each of lakemark's rows to each rival's, with what is right and what is not."""
    if not MEASURES[bench]:
        return []
    found = []
    for busy in (False, True):  # a snapshot beside a workload is compared with such a one
        alike = [row for row in rows if str(row["who"]).endswith(" busy") is busy]
        correct = {(row["who"], *size_of(row).values()): row["correct"] for row in alike}
        for one in ratios(alike, MEASURES[bench]):
            size = size_of(one).values()
            if any(one[measure] is not None for measure in MEASURES[bench]):
                found.append({
                    **one,
                    "start_rows": one.get("start_rows") or None,
                    "ours_correct": correct[one["ours"], *size],
                    "other_correct": correct[one["other"], *size],
                })  # fmt: skip
    return found


def _wrong(wrong: Iterable[Mapping[str, str]]) -> list[str]:
    """What differs, each once: rounds and sizes say the same; of a log, its last line."""
    texts = dict.fromkeys(
        f"- {one['who']}: {line[:LONGEST]}"
        for one in wrong
        for line in one["difference"].strip().splitlines()[-1:]
    )
    return ["\n".join(texts) + "\n"] if texts else []


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Rows in Markdown; columns that no row has a figure for are left out."""
    shown = [key for key in columns if any(row.get(key) is not None for row in rows)]
    lines = [[columns[key] for key in shown], ["---"] * len(shown)]
    lines += [[cell(row.get(key)) for key in shown] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_setting, value))
    return cell(value)
