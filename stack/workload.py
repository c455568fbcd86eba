"""Writers that change the shop in every way that is hard for change data capture.

Each writer has a connection and a share of the keys (`id % writers`), so that writers wait for
each other but do not deadlock. One more writer holds long transactions open, into which the others
commit. What a writer does is drawn from a seeded generator; how the writers interleave is not.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from stack.database import Database
from stack.processes import StackError
from stack.transactions import ACTIONS, Action, Share, TakenBack, long_step, truncate

SIZES: Final = (1, 1, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
"""Rows a transaction is meant to change; small ones are common."""
LONG_S: Final = (0.5, 3.0)
"""How long the long transactions stay open, in seconds."""


@dataclass(slots=True)
class Written:
    """What was committed.

    Attributes:
        transactions: committed transactions.
        rows: rows changed in them, those of a truncate not counted.
        rolled_back: transactions that were rolled back.
        actions: committed transactions by kind.
    """

    transactions: int = 0
    rows: int = 0
    rolled_back: int = 0
    actions: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.transactions} transactions with {self.rows} rows committed, "
            f"{self.rolled_back} rolled back"
        )


class Workload:
    """Writers that run until they are stopped.

    Args:
        database: the shop.
        writers: connections that write, the one with the long transactions not counted.
        seed: of what they do.
        rows_per_s: about how many rows are changed per second, by all writers together.
        sizes: rows a transaction is meant to change.
        truncates: whether carts is truncated now and then.
    """

    def __init__(
        self,
        database: Database,
        *,
        writers: int = 3,
        seed: int = 1,
        rows_per_s: float = 1000.0,
        sizes: tuple[int, ...] = SIZES,
        truncates: bool = True,
    ) -> None:
        self.written = Written()
        self._database = database
        self._writers = writers
        self._seed = seed
        self._pause_s = writers / rows_per_s
        self._sizes = sizes
        self._truncates = truncates
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the writers."""
        for number in range(self._writers + 1):
            target = self._long if number == self._writers else self._short
            thread = threading.Thread(
                target=self._guarded, args=(target, number), name=f"writer-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, deadline_s: float = 300) -> Written:
        """Let each writer finish its transaction and return what was committed.

        Raises:
            StackError: a writer failed, or did not end in time.
        """
        self._stopping.set()
        end = time.monotonic() + deadline_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            raise StackError(f"writers have not ended after {deadline_s:g} s")
        if self._failure is not None:
            raise StackError(f"a writer failed: {self._failure!r}") from self._failure
        return self.written

    def run_for(self, seconds: float) -> Written:
        """Write for so many seconds."""
        self.start()
        self._stopping.wait(seconds)
        return self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.stop()
        except StackError:
            if kind is None:  # else the block's own error says more
                raise

    def _guarded(self, target: Callable[[int], None], number: int) -> None:
        try:
            target(number)
        except BaseException as error:  # noqa: BLE001 (told by `stop`)
            self._failure = error

    def _short(self, number: int) -> None:
        rng = random.Random(f"{self._seed}-{number}")
        actions = [a for a in ACTIONS if self._truncates or a is not truncate]
        weights = [ACTIONS[action] for action in actions]

        def write(share: Share) -> None:
            while not self._stopping.is_set():
                (action,) = rng.choices(actions, weights)
                rows = self._transact(share, action, rng.choice(self._sizes))
                self._stopping.wait(self._pause_s * max(1, rows) * rng.uniform(0.5, 1.5))

        self._connected(write, number, self._writers, rng)

    def _connected(
        self, write: Callable[[Share], None], number: int, share_of: int, rng: random.Random
    ) -> None:
        """Write until the end, in a new session where the database was away meanwhile.

        A database that restarts is not the writer's failure: it goes on when it is back.
        """
        while not self._stopping.is_set():
            try:
                with self._database.connect() as connection:
                    share = Share(number, share_of, rng, self._database, connection)
                    share.begin_session()
                    write(share)
            except (self._database.CLIENT_ERROR, OSError) as error:
                if not self._database.is_away(error):
                    raise
            self._stopping.wait(0.2)

    def _transact(self, share: Share, action: Action, size: int) -> int:
        try:
            with share.connection.transaction():
                rows = action(share, size)
        except TakenBack:
            self._count("roll_back", 0)
            return 0
        except self._database.CLIENT_ERROR as error:
            if not self._database.is_conflict(error):
                raise
            self._count("roll_back", 0)
            return 0
        self._count(action.__name__.strip("_"), rows)
        return rows

    def _count(self, kind: str, rows: int) -> None:
        with self._lock:
            if kind == "roll_back":
                self.written.rolled_back += 1
            else:
                self.written.transactions += 1
                self.written.rows += rows
                self.written.actions[kind] += 1

    def _long(self, number: int) -> None:
        """Transactions that stay open: their changes are old when they are committed."""
        rng = random.Random(f"{self._seed}-long")

        def write(share: Share) -> None:
            while not self._stopping.is_set():
                self._transact(share, long, 0)

        def long(share: Share, _size: int) -> int:
            rows, end = 0, time.monotonic() + rng.uniform(*LONG_S)
            while time.monotonic() < end and not self._stopping.wait(0.1):
                rows += long_step(share)
            return rows

        self._connected(write, number, self._writers + 1, rng)
