"""A pipeline's HTTP side: the real application, board and metrics; Kafka is a list."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from starlette.testclient import TestClient
from structlog.testing import capture_logs

from lakemark.connectors.postgres.conditions import check
from lakemark.errors import DependencyError
from lakemark.model.cuts import SourceCut
from lakemark.model.proof import TableProof
from lakemark.ops import lag
from lakemark.ops.board import Board
from lakemark.ops.http import http
from lakemark.ops.http.commands import Commands
from lakemark.ops.http.server import serving
from lakemark.ops.http.waiting import LongPolls
from lakemark.ops.metrics import Metrics
from lakemark.ops.status import BatchDone, CatalogChange, CatalogNow, SourceNow
from lakemark.ops.waits import Waits
from lakemark.settings import masking
from lakemark.settings.config import load
from lakemark.settings.verify_config import VerifyConfig
from lakemark.snapshot import notifications
from lakemark.snapshot.notifications import Progress, Subject
from lakemark.state.tables import PipelineState
from tests.kit.lively import Clock, lively
from tests.kit.table_states import table_state

A, B, C = "public.a", "public.b", "public.c"

SMALL = """\
name: shop-of-the-north
kafka: {bootstrap_servers: localhost:9092}
source: {connect: {url: http://localhost:8083, connector: shop}}
lake: {path: ./lake}
checkpoint: ./checkpoint
"""


@dataclass(kw_only=True)
class Written:
    """Kafka as a list: what a pipeline's HTTP side has written to it.

    Attributes:
        away: whether Kafka is.
        written: signals, and control records by kind and table.
    """

    away: bool = False
    written: list[tuple[str, ...]] = field(default_factory=list)

    def signal(self, value: bytes) -> None:
        self._check()
        self.written.append(("signal", value.decode()))

    def control(self, kind: str, table: str) -> str:
        self._check()
        self.written.append((kind, table))
        return "c1"

    def _check(self) -> None:
        if self.away:
            raise DependencyError("Kafka is away", code="kafka-unavailable", hint="start it")


@dataclass(kw_only=True)
class Served(Written):
    """The HTTP side of a lively pipeline, on an address of its own."""

    address: str
    board: Board
    clock: Clock


def serve(
    folder: Path,
    more: str = "http: {bind: 127.0.0.1:0}",
    waits: Callable[[Board], Waits] | None = None,
) -> Iterator[Served]:
    """Serves it until the iterator ends.

    Args:
        folder: for its configuration.
        more: a section of that.
        waits: makes what looks at the board's tables.
    """
    file = folder / "lakemark.yaml"
    file.write_text(f"{SMALL}{more}\n")
    board, clock = lively()
    served = Served(address="", board=board, clock=clock)
    does = Commands(served.signal, served.control, check)
    with (
        capture_logs() as logs,
        serving(load(file, {}), board, Metrics(board), does, waits(board) if waits else None),
    ):
        (said,) = [line for line in logs if line["event"] == "http.listening"]
        served.address = said["address"]
        yield served


@dataclass(kw_only=True)
class Site(Written):
    """One pipeline's application, asked without a server.

    Attributes:
        token: that of its configuration.
    """

    token: str | None = None
    waits: Waits = field(init=False)

    def __post_init__(self) -> None:
        masking.know(lambda: masking.Masks(["hush-4hush"]))
        self.board = Board("shop", verify=VerifyConfig(every=timedelta(days=7)))
        self.metrics = Metrics(self.board)
        self.waits = Waits(self.board)
        answers = http.Endpoints(
            "shop",
            self.board,
            self.metrics,
            Commands(self.signal, self.control, check),
            LongPolls(self.waits, most=2),
            ready_lag=timedelta(seconds=60),
        )
        made = http.app(answers, token=self.token)
        self.client = TestClient(made, "http://127.0.0.1:8780", raise_server_exceptions=False)

    def get(self, path: str, **more):
        return self.client.get(path, **more)

    def post(self, path: str, body: object = None, **more):
        return self.client.post(path, json={} if body is None else body, **more)

    def stream(self) -> None:
        """A pipeline in which something happens in every part."""
        board = self.board
        board.captured([A, B, C])
        board.pipeline("streaming")
        a = table_state(topics=["t.a"], rows=7, bytes=99, events=9, newest_ts=5_000_000, engine="x")
        why = {"code": "no-key", "reason": "hush-4hush in it", "hint": "give it one"}
        b = table_state(topics=["t.b"], state="errored", dead_letters=2, events=1, **why)
        b.progress.from_offsets = {"t.b": {0: 1}}
        offsets = {"t.a": {0: 9}, "t.b": {0: 1}}
        now = int(time.time() * 1000)
        found = {"proved_ms": now - 60_000, "turn_ms": now - 9000, "ended_ms": now - 8000}
        proofs = {A: TableProof(**found, run="v", found={"missing": 2})}
        state = PipelineState(batch=4, offsets=offsets, tables={A: a, B: b}, proofs=proofs)
        state.cutting.last = SourceCut(4, "742:16", ended_ms=2500, without=(B,))
        board.tables(state)
        done = BatchDone(4, 10, 7, {"plan": 0.1, "tasks": 2.0}, held={"touches": 3, "parts": 2})
        board.batch(done)
        self.metrics.batch(done)
        board.ends(lag.Ends({}, {"t.a": {0: 9}, "t.b": {0: 1}}))
        now = int(time.time() * 1000)
        board.source(
            SourceNow(
                now, watched=True, connector="RUNNING", slot="shop", slot_active=True,
                slot_distance_bytes=17, heartbeat_ms=now - 5000, proven_ms=now,
            )
        )  # fmt: skip
        made = CatalogChange(A, "rewritten", "read-again", "it hush-4hush was rewritten", "", now)
        board.catalog(CatalogNow(now, changes=(made,)))
        run = Subject("r1", "shop", (A,))
        board.signal(b'{"id": "r1", "type": "execute-snapshot"}', sent_ms=1, unnamed="u")
        half = Progress(chunks=1, total_chunks=2, rows=3, seconds=1)
        board.notification(notifications.started(run, ts_ms=2))
        board.notification(notifications.in_progress(run, table=A, progress=half, ts_ms=3))
