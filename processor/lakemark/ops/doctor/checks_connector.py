"""The connector: from its settings and its state to findings. Pure.

`suitability` finds settings that make a connector unfit; here is what else should be known.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.connector_traits import SETTING, ConnectorTraits
from lakemark.connectors.suitability import PARTS, TIME_LOSSES, WITHOUT_ROWS
from lakemark.errors import ConfigError
from lakemark.model.findings import Finding, clock, fine, of_problem, warning, wrong
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.connector_trace import last_cause
from lakemark.settings.config import Config
from lakemark.settings.layers import Mistake, SetTo
from lakemark.snapshot.output_frontier import HINT

CHECKS: Final = ("connector", SETTING)
COMMITTED: Final = "committed offset"

_FLUSH: Final = (
    "unknown: a setting of the worker, 60 s unless changed. After a crash the connector repeats up"
    " to that much; repeated events change nothing"
)


@dataclass(frozen=True, slots=True)
class Task:
    """A task in Connect's words; the trace is that of its failure."""

    id: int
    state: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The position that the connector has committed, by Connect; `missing` says why it is unknown.

    `position` is empty if the connector has committed none, or is in a snapshot of its own.
    """

    position: bytes
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ConnectorFacts:
    """A connector and what runs it.

    Attributes:
        name: of the connector.
        settings: its configuration.
        problems: what `suitability` says of them.
        state: RUNNING, PAUSED, …; empty when only its file is known.
        tasks: of the connector.
        version: of the worker; empty when only the file is known.
        cluster_id: of the worker's Kafka.
        skew_s: by how much the worker's clock is ahead of ours.
        committed: its committed offsets; None where nobody was asked.
        traits: of its kind.
    """

    name: str
    settings: Mapping[str, str]
    problems: tuple[Mistake, ...]
    traits: ConnectorTraits
    state: str = ""
    tasks: tuple[Task, ...] = ()
    version: str = ""
    cluster_id: str = ""
    skew_s: float | None = None
    committed: CommittedOffsets | None = None

    @property
    def runs(self) -> bool:
        """Say whether it and all its tasks run, as far as is known."""
        return self.state == "RUNNING" and all(t.state == "RUNNING" for t in self.tasks)


def findings(facts: ConnectorFacts, config: Config) -> list[Finding]:
    """Return all findings about the connector."""
    return [
        *_state(facts, config),
        *of_settings(facts.settings, facts.problems, facts.traits),
        *_committed(facts, config),
        fine(SETTING, "offset.flush.interval.ms", _FLUSH),
    ]


def of_settings(
    settings: Mapping[str, str], problems: Iterable[Mistake], traits: ConnectorTraits
) -> list[Finding]:
    """Return all findings about a connector's settings.

    Args:
        settings: the connector's.
        problems: what `suitability` says of them.
        traits: of its kind.
    """
    return [
        *(of_setting(problem) for problem in problems),
        *_modes(settings),
        *traits.findings(settings),
        *_snapshot_mode(settings),
        *_snapshot_parts(settings),
        *_conversion(settings),
        *_heartbeat(settings, traits),
        *_deletes(settings),
    ]


def other_cluster(facts: ConnectorFacts, cluster_id: str) -> list[Finding]:
    """Warn if Connect works with another Kafka than the one that we read."""
    if not facts.cluster_id or facts.cluster_id == cluster_id:
        return []
    return [
        warning(
            "connector",
            facts.name,
            f"its worker belongs to the Kafka cluster {facts.cluster_id}, we read {cluster_id}:"
            " its events come here only by producer.override.bootstrap.servers or a mirror",
            "set kafka.bootstrap_servers to the cluster that the connector writes to",
        )
    ]


def _committed(facts: ConnectorFacts, config: Config) -> Iterator[Finding]:
    """Report whether the committed position can be seen.

    Rows of snapshots go to output topics when all events before them are known to be written, and
    the committed position shows that soonest.
    """
    if config.output is None:
        return
    committed = facts.committed
    if committed is None:
        why = "cannot be seen without source.connect"
    else:
        why = f"cannot be seen: {committed.missing}" if committed.missing else ""
    if why:
        reason = f"{why}. Snapshots for output topics wait for a later event in every partition"
        yield warning(COMMITTED, facts.name, reason, HINT)
    elif committed is not None and committed.position:
        yield fine(COMMITTED, facts.name, "Connect tells how far the connector has come")
    else:
        reason = "Connect tells none yet: the connector is at its own snapshot, or has just begun"
        yield fine(COMMITTED, facts.name, reason)


def of_setting(problem: Mistake) -> Finding:
    """Return the finding of a problem with a setting of the connector."""
    return of_problem(SETTING, problem.path.removeprefix("connector: "), problem)


# --- is it running? --------------------------------------------------------------------------


def _state(facts: ConnectorFacts, config: Config) -> Iterator[Finding]:
    connect = config.source.connect
    if connect is None:
        file = str(config.source.connector_file)
        yield fine("connector", facts.name, f"known from {file}: whether it runs cannot be seen")
        return
    place = f"{connect.url.rstrip('/')}/connectors/{facts.name}"
    yield clock("Kafka Connect", facts.skew_s)
    if facts.state in {"PAUSED", "STOPPED"}:
        reason = f"is {facts.state}: no events come, and {facts.traits.unread_log}"
        yield wrong("connector", facts.name, reason, f"curl -X PUT {place}/resume")
    elif facts.state != "RUNNING":
        yield _down(facts.name, f"is {facts.state or 'unknown'}", place)
    elif not facts.tasks:
        yield _down(facts.name, "runs without a task", place)
    elif facts.runs:
        count = "one task" if len(facts.tasks) == 1 else f"{len(facts.tasks)} tasks"
        yield fine("connector", facts.name, f"RUNNING with {count}, Connect {facts.version}")
    for task in facts.tasks:
        if task.state not in {"RUNNING", "PAUSED"}:
            cause = last_cause(task.trace, facts.settings, facts.traits)
            why = f" ({cause})" if cause else ""
            yield _down(facts.name, f"task {task.id} is {task.state}{why}", place)


def _down(name: str, reason: str, place: str) -> Finding:
    return wrong(
        "connector",
        name,
        f"{reason}; the whole trace: curl -s {place}/status",
        f"curl -X POST '{place}/restart?includeTasks=true&onlyFailed=true'",
    )


# --- settings --------------------------------------------------------------------------------


def _modes(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Report modes that keep every value; `suitability` reports the others."""
    try:
        modes = HandlingModes.from_connector(settings)
    except ConfigError:
        return
    if modes.decimal != "double":
        yield fine(SETTING, "decimal.handling.mode", f"{modes.decimal} keeps every digit")
    if modes.time_precision not in TIME_LOSSES:
        yield fine(SETTING, "time.precision.mode", f"{modes.time_precision} keeps microseconds")


def _snapshot_mode(settings: Mapping[str, str]) -> Iterator[Finding]:
    check, name = SETTING, "snapshot.mode"
    mode = settings.get(name, "initial").strip().lower()
    if mode == "initial_only":
        yield wrong(
            check,
            name,
            "initial_only ends the connector after its snapshot: changes never come",
            SetTo(name, "initial"),
        )
    elif mode == "always":
        yield warning(
            check,
            name,
            "always reads every table at every start of the connector, and rows deleted in between"
            " stay until lakemark has taken a snapshot",
            SetTo(name, "initial", more=" or no_data"),
        )
    elif mode in WITHOUT_ROWS:
        yield fine(
            check,
            name,
            f"{mode}: rows from before the connector come by a snapshot of lakemark's, which it "
            "takes by itself where `database` is set and `snapshot.incomplete` is not manual",
        )
    elif mode in {"initial", "when_needed"}:
        yield fine(check, name, f"{mode}: the connector reads the tables first")
    else:
        yield warning(check, name, f"{mode}: what the connector's snapshot holds cannot be told")


def _snapshot_parts(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Report settings with which the connector's own snapshot lacks a part of the tables."""
    if settings.get("snapshot.mode", "initial").strip().lower() in WITHOUT_ROWS:
        return
    for name, left_out in PARTS.items():
        if any(setting.startswith(name) and settings[setting].strip() for setting in settings):
            yield warning(
                SETTING,
                name,
                f"the connector's own snapshot leaves out {left_out}",
                "lakemark snapshot start TABLE",
            )


def _conversion(settings: Mapping[str, str]) -> Iterator[Finding]:
    name = "event.converting.failure.handling.mode"
    mode = settings.get(name, "warn").strip().lower()
    what = "the connector stops at a" if mode == "fail" else "NULL stands for a"
    yield fine(SETTING, name, f"{mode}: {what} value that it cannot convert")


def heartbeat_s(settings: Mapping[str, str]) -> float:
    """Return how often the connector writes a heartbeat, in seconds; 0 = never."""
    value = settings.get("heartbeat.interval.ms", "0").strip()
    return int(value) / 1000 if value.isdecimal() else 0.0


def _heartbeat(settings: Mapping[str, str], traits: ConnectorTraits) -> Iterator[Finding]:
    name = "heartbeat.interval.ms"
    if every_s := heartbeat_s(settings):
        yield fine(SETTING, name, f"a heartbeat every {every_s * 1000:.0f} ms")
    else:
        yield warning(
            SETTING,
            name,
            f"there are no heartbeats: while the captured tables are silent, {traits.silent_log}",
            SetTo(name, "10000"),
        )


def _deletes(settings: Mapping[str, str]) -> Iterator[Finding]:
    value = settings.get("tombstones.on.delete", "true").strip().lower()
    reason = f"{value}: lakemark works with both"
    yield fine(SETTING, "tombstones.on.delete", reason)
