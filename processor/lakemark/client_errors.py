"""What becomes of the errors that a client of Kafka meets: which of ours they are.

    what the client says                      error
    ----------------------------------------  ----------------------------------------------------
    it does not take a setting                `InvalidConfig`: unknown names, unreadable files
    the brokers do not accept us              `LoginRefused`: waiting does not mend it
    anything else, and no answer in time      `DependencyError`, `kafka-unavailable`: it is retried

A client that goes on for ever tells its errors to a callback, in the thread that polls it: what was
told is kept here until somebody asks.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from lakemark.config import Config
from lakemark.errors import DependencyError
from lakemark.settings import masking
from lakemark.settings.layers import InvalidConfig, LoginRefused, Problem

# Wrong credentials or certificates: waiting does not mend them.
_NOT_TRUSTED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001


def not_let_in(error: KafkaError) -> LoginRefused:
    """What it means that the brokers do not accept our credentials or certificate."""
    message = f"the brokers do not let us in: {masking.foreign(error.str())}"
    hint = "check kafka.security against the brokers"
    return LoginRefused(Problem("kafka.security", message, hint), code="kafka-refused")


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
    """The `error_cb` of a client: what it met last."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Called by the client while it is polled."""
        self.error = error

    def explain(
        self, config: Config, error: KafkaError, *, met: bool
    ) -> DependencyError | LoginRefused:
        """What it means that a request failed.

        Args:
            config: says which brokers.
            error: of the request.
            met: whether an earlier request was answered: what is refused then may be mended.
        """
        last = self.error
        if last is not None and last.code() in _NOT_TRUSTED and not met:
            return not_let_in(last)
        return away(config, error.str() + (f" ({last.str()})" if last is not None else ""))


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
        problem = Problem("kafka", f"the Kafka client refuses its settings: {said}")
        raise InvalidConfig([problem]) from error


def away(config: Config, reason: str) -> DependencyError:
    """The error of a broker that does not answer."""
    return DependencyError(
        f"Kafka at {config.kafka.bootstrap_servers} is away: {masking.foreign(reason)}",
        code="kafka-unavailable",
        hint="start the brokers, or correct kafka.bootstrap_servers",
    )
