"""The errors that a client of Kafka meets, as errors of ours.

    what the client says                      error
    ----------------------------------------  ----------------------------------------------------
    it does not take a setting                `InvalidConfig`: unknown names, unreadable files
    the brokers do not accept us              `LoginRefused`: waiting does not mend it
    anything else, and no answer in time      `DependencyError`, `kafka-unavailable`: it is retried

A client that goes on for ever tells its errors to a callback, in the thread that polls it: what was
told is kept here until somebody asks.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException

from lakemark.errors import DependencyError
from lakemark.settings import masking
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake

# Wrong credentials or certificates: waiting does not mend them.
_NOT_TRUSTED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001
_STATE: Final = re.compile(r"\s*\(after [^()]*\)$")
# Says nothing of why no broker answers: what the client met before does.
_NO_REASON: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001

SILENT_S: Final = 2.0
"""Brokers that do not answer for longer are worth a line."""
AGAIN_S: Final = 8.0
"""And another one after so long: whoever looks on never sees ten seconds of silence."""
_MINUTE_S: Final = 60.0
REFUSED_S: Final = 2.0
"""A client that one broker refuses meets the others in this time, if they let it in."""

log = structlog.get_logger("lakemark.kafka")


def not_let_in(error: KafkaError) -> LoginRefused:
    """Return the error for brokers that do not accept our credentials or certificate."""
    message = f"the brokers do not let us in: {masking.foreign(error.str())}"
    hint = "check kafka.security against the brokers"
    return LoginRefused(Mistake("kafka.security", message, hint), code="kafka-refused")


class Admission:
    """The `error_cb` of a client that lives long: whether the brokers still let it in.

    librdkafka goes on for ever with the password it was made with: a changed one takes a new
    client.
    """

    def __init__(self) -> None:
        self._refused: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Called by the client while it is polled."""
        if error.code() in _NOT_TRUSTED:
            self._refused = error

    def require(self) -> None:
        """Says that the client is of no use any more.

        Raises:
            LoginRefused: the brokers have refused it; another client may know the new password.
        """
        if self._refused is not None:
            raise not_let_in(self._refused)


class LastError:
    """The `error_cb` of a client: what it met last, and what the brokers refused."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.refused: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Called by the client while it is polled."""
        if error.code() != _NO_REASON or self.error is None:
            self.error = error
        if error.code() in _NOT_TRUSTED:
            self.refused = error

    def explain(
        self, config: Config, error: KafkaError, *, met: bool
    ) -> DependencyError | LoginRefused:
        """Return the error for a request that failed.

        Args:
            config: says which brokers.
            error: of the request.
            met: whether an earlier request was answered: what is refused then may be mended.
        """
        if self.refused is not None and not met:
            return not_let_in(self.refused)
        return away(config, error.str() + (f" ({self.reason})" if self.error else ""))

    @property
    def reason(self) -> str:
        """The last error of the client, without its own state; empty if there was none."""
        return _STATE.sub("", self.error.str()) if self.error else ""


class _Notices:
    """Lines about brokers that do not answer: one at a time, whoever waits for them.

    Every `AGAIN_S` for a minute, as a start or a command is being watched; then every minute.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = self._last = -_MINUTE_S * 2

    def say(self, brokers: str, reason: str, *, waited_s: float, left_s: float) -> None:
        """Writes a line unless there was one a moment ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._last > _MINUTE_S * 2:
                self._first = now
            often = now - self._first < _MINUTE_S
            if now - self._last < (AGAIN_S if often else _MINUTE_S):
                return
            self._last = now
        log.warning(
            "kafka.waiting",
            brokers=brokers,
            reason=reason,
            waited_s=round(waited_s),
            gives_up_after_s=round(waited_s + left_s),
        )


_notices: Final = _Notices()


def await_first_answer(
    config: Config,
    last: LastError,
    answered: Callable[[], bool],
    over: threading.Event | None = None,
) -> None:
    """Waits until the brokers have answered for the first time, and says so where it takes long.

    A request of librdkafka's goes on until its time is over, whatever the brokers say; the client
    tells why at once, but only to whoever polls it.

    Args:
        config: says which brokers, and how long.
        last: what the client meets.
        answered: polls the client for a moment; whether the first answer has come.
        over: ends the waiting.

    Raises:
        LoginRefused: a broker does not accept us, and no other one let us in.
        DependencyError: no answer in `kafka.timeout`.
    """
    begun, refused_at = time.monotonic(), 0.0
    timeout_s = config.kafka.timeout.total_seconds()
    while not answered():
        now = time.monotonic()
        waited_s = now - begun
        if last.refused is not None:
            refused_at = refused_at or now
            if now - refused_at > REFUSED_S:
                raise not_let_in(last.refused)
        if waited_s > timeout_s or (over is not None and over.is_set()):
            silent = KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout_s:g} s")  # noqa: SLF001
            raise last.explain(config, silent, met=False)
        if waited_s > SILENT_S:
            reason = last.reason or "no answer to the first request"
            brokers = config.kafka.bootstrap_servers
            _notices.say(brokers, reason, waited_s=waited_s, left_s=timeout_s - waited_s)


@contextlib.contextmanager
def refused_settings() -> Iterator[None]:
    """Explains settings that the client itself refuses: unknown names, unreadable certificates.

    Raises:
        InvalidConfig: it refused them.
    """
    try:
        yield
    except KafkaException as error:
        said = masking.foreign(error.args[0].str())
        problem = Mistake("kafka", f"the Kafka client refuses its settings: {said}")
        raise InvalidConfig([problem]) from error


def away(config: Config, reason: str) -> DependencyError:
    """The error of a broker that does not answer."""
    return DependencyError(
        f"Kafka at {config.kafka.bootstrap_servers} is away: {masking.foreign(reason)}",
        code="kafka-unavailable",
        hint="start the brokers, or correct kafka.bootstrap_servers",
    )
