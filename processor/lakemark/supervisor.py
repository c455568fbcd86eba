"""Keeps one pipeline running: start, restart after failures, wake it when tables have to catch up.

state       meaning
----------  -----------------------------------------------------------------------------
starting    session, topics, connector, catalog
standby     another process runs the pipeline; this one takes over when that one ends
streaming   the query runs
degraded    something it needs is away: tried again with backoff, for ever (`--once`: 5 times)
stopped     on request, or by an error that only a person can mend
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from lakemark.backoff import Backoff
from lakemark.causes import cause
from lakemark.errors import ConfigError, DependencyError, LakemarkError, PipelineError
from lakemark.kafka import brokers, records
from lakemark.kafka.client_settings import by_offset, carried
from lakemark.model.control import Wake, encode
from lakemark.model.decoding import LOG_CHANGED
from lakemark.ops import settings_record
from lakemark.ops.board import Board
from lakemark.ops.http import server
from lakemark.ops.metrics import Metrics
from lakemark.ops.starting import Starting
from lakemark.ops.status import BatchDone, PipelineWord
from lakemark.ops.waits import Waits
from lakemark.pipeline import Pipeline
from lakemark.runners.batch_runner import JAVA_ENDED, BatchRunner, OtherStagesError, Query
from lakemark.runners.stopping import Stop
from lakemark.runners.trigger import Trigger
from lakemark.settings.config import Config
from lakemark.snapshot import listed_connectors, notifications
from lakemark.snapshot.signals import Rejection
from lakemark.sources import schema_topics
from lakemark.sources.beside import Beside
from lakemark.sources.connecting import Absent, Connecting
from lakemark.sources.cutting import Cutting
from lakemark.sources.schema_topics import SchemaTopics
from lakemark.sources.source_set import Sources
from lakemark.state import control, handling, recovery, tables
from lakemark.state.advance import News
from lakemark.state.checkpoint import DAMAGED, LOCAL, Checkpoint, Identity
from lakemark.state.connector_drift import ChangedError, agree_on_columns
from lakemark.state.ownership import SUPERSEDED, Owner, Turn
from lakemark.state.progress import CAPTURED, Captured, record_of
from lakemark.state.tables import CATCHING_UP, ERRORED, PipelineState
from lakemark.state.takeover import StoppedError, Takeover

if TYPE_CHECKING:
    from confluent_kafka import Producer


log = structlog.get_logger(__name__)

ONCE_ATTEMPTS: Final = 5
TOPICS_EVERY_S: Final = 30.0  # how often the topics' ids are compared
RUNNER: Final = "LAKEMARK_RUNNER"
"""Set in the environment: `local` runs the batches without Spark. For tests; see `local_runner`."""
RETRY_EVERY_S: Final = 15.0  # how often errored tables that retry are given a batch


class Supervisor:
    """The life of one pipeline from start to stop. Not reusable."""

    def __init__(self, config: Config, *, once: bool) -> None:
        self.config = config
        self.once = once
        self.stop = Stop(config.stream.stop_grace.total_seconds())
        self.stopping, self.hurry = self.stop.asked, self.stop.hurry
        self.starting = Starting()
        self.state = PipelineState()
        self.captured: tuple[str, ...] = ()
        self.published: dict[str, bytes | None] = {}
        self.progress: Producer | None = None
        self.beside: Beside | None = None
        self.turn = Turn(config)
        self.takeover = Takeover(config.name, self.turn, self.stopping, once=once)
        self.sources = Sources(())
        self.connecting = Connecting(config)
        self.absent = Absent({})
        self.every: frozenset[str] = frozenset()
        self.stands_by = True  # until the checkpoint is this process's own
        self.streamed = False
        self.board = Board(config.name, verify=config.verify)
        self.metrics = Metrics(self.board)
        self.waits = Waits(self.board)

    def run(self) -> int:
        """Run until told to stop; return 0 if all is well.

        With `--once` it is 1 if tables are errored, or one of several connectors is away.

        Raises:
            LakemarkError: an error that only a person can mend.
        """
        self.stop.on_signals()
        try:
            with self.starting:
                return self._run()
        except StoppedError:
            return 0
        except PipelineError as error:
            if self.stopping.is_set() and error.code == JAVA_ENDED:
                # Whoever stops a group of processes stops Java too.
                log.info("pipeline.stopped", whole=False, reason="Java has ended before")
                return 0
            raise

    def _run(self) -> int:
        with ExitStack() as stack:
            stack.enter_context(self.turn)
            if not self.once:  # a run that ends by itself is watched by its exit code
                stack.enter_context(
                    server.serving(self.config, self.board, self.metrics, waits=self.waits)
                )
            self.starting.step("spark")
            if self.stopping.is_set():
                return 0
            # Not interrupted: a Java that is half started would outlive this process.
            runner, why = stack.enter_context(self._runner()), None
            try:
                return self._supervise(runner)
            except LakemarkError as error:
                why = error
                raise
            finally:
                self.starting.end()
                if not self.hurry.is_set():
                    self._publish_pipeline("stopped", why)

    def _runner(self) -> AbstractContextManager[BatchRunner]:
        # What one of them needs the other can do without: Spark's packages, a compiler.
        if os.environ.get(RUNNER) == LOCAL:
            from lakemark.runners.local_runner import LocalRunner  # noqa: PLC0415

            return nullcontext(LocalRunner(self.config))
        from lakemark.spark.spark_runner import spark_runner  # noqa: PLC0415

        return spark_runner(self.config, self._in_hurry)

    def _supervise(self, runner: BatchRunner) -> int:
        failures, losses = Backoff(), Backoff()
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                self._stream(runner)
                return self._verdict()
            except StoppedError:
                return 0
            except ChangedError:
                continue
            except (DependencyError, ConfigError) as error:
                if isinstance(error, ConfigError) and not (self.streamed and error.retried):
                    raise  # a start with a wrong password ends
                failure: LakemarkError = error
            self.starting.end()
            if failure.code == SUPERSEDED:
                log.warning("pipeline.superseded", reason=failure.message, hint=failure.hint)
                self.board.pipeline("standby", reason=failure.message, hint=failure.hint)
                self.stands_by = True
                self.stopping.wait(losses.failed(after_s=time.monotonic() - begun))
                continue
            wait = failures.failed(after_s=time.monotonic() - begun)
            if self.once and failures.attempts >= ONCE_ATTEMPTS:
                raise failure
            log.warning(
                "pipeline.degraded",
                code=failure.code,
                reason=failure.message,
                hint=failure.hint,
                attempt=failures.attempts,
                next_try_s=round(wait),
            )
            self._publish_pipeline("degraded", failure)
            self.stopping.wait(wait)
        return 0

    def _stream(self, runner: BatchRunner) -> None:
        with self.stop.interruptible():
            pipeline = self._pipeline(runner)
        with self._watched(pipeline):
            self._queries(pipeline)

    def _queries(self, pipeline: Pipeline) -> None:
        armed = bool(self.sources.runs(self.state.runs))
        self.starting.step("query")
        while not self.stopping.is_set():
            query = pipeline.start(armed=armed, once=self.once)
            self.streamed = True
            log.info("pipeline.streaming", query=str(query.id), once=self.once)
            self._publish_pipeline("streaming")
            error: Exception | None = None
            try:
                self._watch(query, pipeline.checkpoint)
            except pipeline.runner.errors as ended:
                error = ended
            finally:
                pipeline.pace.end()
                if query.isActive:
                    self._drain(query, pipeline)
                    query.stop()
            failure = pipeline.failure
            if isinstance(failure, OtherStagesError):
                armed = failure.armed
                continue
            wrong = None if self.stopping.is_set() else error or failure
            if wrong is not None:
                raise self._cause(pipeline, wrong) from error
            if not self.once or not self._needs_batch():
                break
            self._wake()  # tables that still catch up get another round

    def _pipeline(self, runner: BatchRunner) -> Pipeline:
        config = self.config
        self.starting.step("kafka")
        with brokers.Cluster(config) as cluster:
            created = cluster.ensure_topics()
        if created:
            log.info("topics.created", topics=created)
        self.starting.step("checkpoint")
        checkpoint = self._checkpoint(runner)
        self.starting.step("connector")
        # As it is now: the turn may have come after weeks.
        written = checkpoint.newest().output_prefixes
        connected = self.connecting.connect(checkpoint, written)
        self.sources = sources = Sources(tuple(one.source for one in connected))
        captured = {table: s for one in connected for table, s in one.captured.items()}
        forms = agree_on_columns(config, checkpoint, captured)
        self.absent = self.connecting.absent(checkpoint, written, connected)
        self.starting.step("offsets")
        begin = {one.source.qualifier for one in connected if one.begins}
        self.state = recovery.go_over(
            config, checkpoint, sources.wanted, sources.topic_patterns,
            begins=lambda topic: sources.owners(topic) in begin,
        )  # fmt: skip
        self.board.began(self.state)
        signals = {one.source.connector.signal_table for one in connected}
        self.captured = tuple(sorted(set(captured) - signals))
        self.board.captured(self.captured)
        if sources.several:
            self.every = frozenset() if self.once else self._listed()
            self.board.connectors(
                {one.source.qualifier: one.part.name for one in connected},
                self.connecting.away.items(),
            )
        return Pipeline(
            runner=runner,
            config=config,
            sources=sources,
            checkpoint=checkpoint,
            librdkafka=brokers.librdkafka_options(config),
            end_offsets=lambda topics: brokers.end_offsets(config, topics),
            controls=lambda start, end: control.read(config, start, end),
            publish=self._publish,
            planned=self._planned,
            snapshots=self._committed,
            done=self._done,
            left_out=self._left_out,
            topics_begin=lambda topics: recovery.remember(config, checkpoint, topics),
            schemas=captured,
            forms=forms,
            definitions=SchemaTopics(
                sources.schema_topics(),
                checkpoint,
                schema_topics.reader(lambda: carried(by_offset(config))),
                lambda topics: brokers.end_offsets(config, topics),
            ),
            cutting=Cutting(
                sources.transaction_topics(),
                schema_topics.reader(lambda: carried(by_offset(config))),
                lambda topics: brokers.end_offsets(config, topics),
                most=config.stream.max_events_per_batch,
                holds=not self.once,
            ),
            pace=Trigger() if self.once else Trigger(config.stream.trigger, self._hasty),
        )

    def _listed(self) -> frozenset[str]:
        """Remember the list of connectors; return their qualifiers, as far as they are known."""
        kept = records.read_compacted(self.config, self.config.topics.progress)
        if said := listed_connectors.updates(kept, self.connecting.qualifiers):
            self._say([*said.items()])
        every = listed_connectors.remembered(kept | said).values()
        return frozenset(one.qualifier for one in every if one.qualifier)

    def _checkpoint(self, runner: BatchRunner) -> Checkpoint:
        """Return the pipeline's checkpoint, this process's own from now on; see `Takeover.of`."""
        checkpoint = runner.checkpoint()
        identity = Identity(self.config.name, self.config.stream.shards, runner=runner.kind)
        checkpoint.require(identity)  # before anything is taken from anybody
        if self.takeover.of(checkpoint, self._standby):
            self.board.pipeline("starting")
        self.stands_by, self.published = False, {}  # who had it before said what it knew
        checkpoint.claim(identity)
        return checkpoint

    def _standby(self, owner: Owner | None) -> None:
        self.starting.end()
        log.info("pipeline.standby", **({"owner": owner.host, "pid": owner.pid} if owner else {}))
        self.board.pipeline("standby", reason="another process runs the pipeline")
        self.stands_by = True

    @contextmanager
    def _watched(self, pipeline: Pipeline) -> Iterator[Beside]:
        """Look at connectors and catalogs, feed the board and carry out signals while it runs.

        A run that ends by itself only looks at the catalogs, before it begins.
        """
        beside = Beside(
            self.config, pipeline.sources, pipeline.runner, pipeline.checkpoint, pipeline.forms,
            self.board, lambda: self.state, self.every,
        )  # fmt: skip
        pipeline.children, pipeline.definitions.looks = beside.children, beside.looks
        if self.once:
            beside.look_once()
            yield beside
            return
        pipeline.forms_change, pipeline.seen_columns = beside.look_soon, beside.columns
        pipeline.same_connector = beside.same_connector
        pipeline.numerics, pipeline.read_schemas = beside.numerics, beside.schemas
        with (
            self.absent.running(),
            beside.running(self.stopping) as self.beside,
            self.waits.attached(beside.sent_events, beside.newest_version),
        ):
            yield beside
        self.beside = None

    def _done(self, done: BatchDone) -> None:
        self.starting.end()
        self.board.batch(done)
        self.metrics.batch(done)

    def _left_out(self, record: dict[str, Any]) -> None:
        """Answer a command that is not carried out, as a signal is answered."""
        named = record.get("id")
        name = named if isinstance(named, str) and named else "unnamed"
        log.error("control.left_out", id=name, type=record.get("type"), reason=handling.REASON)
        rejection = Rejection(name, handling.CODE, handling.REASON, handling.HINT)
        now = int(time.time() * 1000)
        note = notifications.rejected(rejection, pipeline=self.config.name, ts_ms=now)
        topic = self.config.topics.notifications
        records.publish(self.config, topic, [(note.key(), note.value())])

    def _planned(self, armed: frozenset[str]) -> None:
        self.starting.next("batch")
        if self.beside is not None:
            self.beside.planned(armed)

    def _committed(self, state: PipelineState, news: News) -> None:
        if self.beside is not None:
            self.beside.committed(state, news)

    def _hasty(self) -> bool:
        return self.beside is not None and self.beside.hasty

    def _watch(self, query: Query, checkpoint: Checkpoint) -> None:
        """Wait until the query ends.

        Raises:
            PipelineError: a topic is not the one that was read before.
            ChangedError: the connector is not as it was.
        """
        woken = time.monotonic()
        looked, known = 0.0, set[str]()
        while not self.stopping.is_set():
            ended = bool(query.awaitTermination(1))
            if ended or str(query.status["message"]).startswith("Waiting"):
                self.starting.end()  # there was nothing to read
            new = self.state.offsets.keys() - known
            if new or time.monotonic() - looked > TOPICS_EVERY_S:
                looked = time.monotonic()
                with suppress(DependencyError):  # the query itself says so
                    known = recovery.still_there(self.config, checkpoint, self.state)
            if not self.turn.held:
                checkpoint.check_owner()
            if ended:
                return
            if self.beside is not None:
                self.beside.require_same()
                self.absent.require_absent()
            at_once = self.state.deferred or tables.any_state(self.state, CATCHING_UP)
            pause = 1.0 if at_once else RETRY_EVERY_S
            if not self.once and self._needs_batch() and time.monotonic() - woken > pause:
                self._wake()
                woken = time.monotonic()

    def _drain(self, query: Query, pipeline: Pipeline) -> None:
        if not self.stopping.is_set():
            return
        grace_s = self.config.stream.stop_grace.total_seconds()
        whole = pipeline.draining.drain(query, grace_s=grace_s, hurry=self.hurry)
        log.info("pipeline.drained", batch=self.state.batch, whole=whole)

    def _in_hurry(self) -> bool:
        """Say whether a stop has taken as long as it may; that of a start may take no time."""
        return self.stop.is_overdue() or (self.stopping.is_set() and not self.streamed)

    def _needs_batch(self) -> bool:
        waits = (self.state.tables[name] for name in tables.rebuilt(self.state))
        if not self.once and any(entry.size.committed_ms for entry in waits):
            return True  # the new table takes its place as a batch begins
        if self.state.deferred or self.state.held or self._doubts_cuts():
            return True
        return tables.any_state(self.state, CATCHING_UP) or any(
            entry.progress.skip_to is not None
            or (entry.state == ERRORED and entry.retried and not self.once)
            for entry in self.state.tables.values()
        )

    def _doubts_cuts(self) -> bool:
        """Say whether a batch at rest may prove tables whole, by what connectors have committed."""
        return not self.once and any(
            one.cutting.doubts and one.cutting.last_ended for one in self.state.every_log()
        )

    def _wake(self) -> None:
        """Write a control record, which makes a batch where the source is silent."""
        record = Wake(id=str(uuid.uuid4()), ts_ms=int(time.time() * 1000))
        topic = self.config.topics.control
        records.publish(self.config, topic, [(b"_pipeline", encode(record))])

    def _verdict(self) -> int:
        errored = {t: s for t, s in self.state.tables.items() if s.state == ERRORED}
        for table, entry in errored.items():
            log.error(
                "table.errored", table=table, code=entry.code, reason=entry.reason, hint=entry.hint
            )
        away = self.connecting.away if self.once else {}
        for name, why in away.items():
            log.error(
                "connector.not_read", connector=name, code=why.code, reason=why.message,
                hint=why.hint,
            )  # fmt: skip
        return 1 if away or (errored and self.once) else 0

    def _cause(self, pipeline: Pipeline, error: BaseException) -> LakemarkError:
        """Return the cause that stopped the query; if not known to be final, it is retried."""
        failure = pipeline.failure
        if not isinstance(failure, LakemarkError) or failure.code == DAMAGED:
            try:  # what Spark complains about may be a takeover, or that the checkpoint is gone
                pipeline.checkpoint.check_owner()
            except LakemarkError as why:
                return why
        return cause(failure, error)

    # -- edges the batches use ------------------------------------------------------------------

    def _publish(self, state: PipelineState) -> None:
        """Write tables whose state changed to the compacted progress topic; at least once."""
        self.state = state
        self.board.tables(state)
        said: dict[str, bytes | None] = dict.fromkeys(state.left)  # nothing is said of them now
        said |= {
            table: msgspec.json.encode((entry, state.proofs.get(table)))
            for table, entry in state.tables.items()
        }
        news = {t: blob for t, blob in said.items() if self.published.get(t, b"") != blob}
        if news:  # the batch alone is none
            self._say([(table.encode(), record_of(table, state)) for table in news])
            self.published |= news
        changed = [name for name, entry in state.tables.items() if entry.code == LOG_CHANGED]
        if changed:
            logs = sorted({one.qualifier for one in map(self.sources.of_table, changed) if one})
            more = [{"follows": True, **({"connector": one} if one else {})} for one in logs]
            control.say(self.config, [("new-epoch", "", fields) for fields in more])

    def _say(self, said: Sequence[tuple[bytes, bytes | None]]) -> None:
        client, self.progress = self.progress or records.producer(self.config), None
        records.publish(self.config, self.config.topics.progress, said, client=client)
        self.progress = client

    def _publish_pipeline(self, state: PipelineWord, error: LakemarkError | None = None) -> None:
        code, reason, hint = (error.code, error.message, error.hint) if error else ("", "", "")
        why = {"code": code, "reason": reason, "hint": hint}
        self.board.pipeline(state, **why)
        if self.stands_by:
            return  # what the topic says is the owner's
        now = int(time.time() * 1000)
        record = {"state": state, "batch": self.state.batch, **why, "ts_ms": now}
        said = [(b"_pipeline", json.dumps(record).encode())]
        if state == "streaming":  # for `lakemark plan` and `lakemark status`
            said.append((settings_record.KEY, settings_record.encode(self.config, ts_ms=now)))
            said.append((CAPTURED, msgspec.json.encode(Captured(self.captured, now))))
        try:
            self._say(said)
        except DependencyError as unreachable:
            log.warning("progress.unreachable", reason=unreachable.message)


def run(config: Config, *, once: bool) -> int:
    """Run the pipeline for `lakemark run`; return the exit code."""
    return Supervisor(config, once=once).run()
