"""The schemas of a registry, each asked for once: in this process, on this machine's disk, there.

| the registry | what happens |
|---|---|
| has the schema | it is kept on the disk and in this process for good |
| is away, refuses us | four attempts, then `DependencyError`; what is kept goes on being used |
| does not know it | it is asked again for `grace_s`: registries are copied from each other |
| still does not know it | the schema is not found; nobody is asked again for half a minute |

A wait in vain is not repeated at once: bytes that are no records may name any number of schemas, so
that lakemark would do nothing but wait. For nine times as long each is asked for once.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Final, TypeVar

import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)

from lakemark.converters.avro import schema_references
from lakemark.converters.avro.registry_api import (
    UNAVAILABLE,
    FoundSchema,
    MissingSchemaError,
    RegistryApi,
    RegistryPart,
    api_of,
)
from lakemark.converters.avro.registry_settings import REGISTERS, RegistrySettings, settings_of
from lakemark.converters.avro.schema_copies import SchemaCopies
from lakemark.converters.avro.schema_source import (
    RECHECK_S,
    SchemaNotFoundError,
    SchemaReference,
    SchemaRefusedError,
)
from lakemark.errors import DependencyError, LakemarkError
from lakemark.model.decoding import ConverterOptions

# A request takes `timeout_s` at most: with 10 s and pauses of 0.5 + 1 + 2 s a registry that does
# not answer is given up after 44 s.
ATTEMPTS: Final = 4
BACKOFF_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0  # between two questions for a schema that is not there yet
_ABSENT_S: Final = 30.0  # for so long nobody is asked again for what was not found
_REST: Final = 9  # times the grace time: a tenth of the time is spent waiting, at most
_REMEMBERED: Final = 10_000  # numbers that were not found
_DEPTH: Final = 1_000  # schemas that one needs, itself or through others

log = structlog.get_logger("lakemark.registry")
T = TypeVar("T")


@lru_cache(maxsize=8)  # a process has one, but for tests
def source_of(options: ConverterOptions) -> "RegistrySource":
    """Return the schemas of the registry that these options name; the same object each time.

    Raises:
        ConfigError: they name none that can be used.
    """
    return RegistrySource(settings_of(options))


class RegistrySource:
    """A `SchemaSource` over a registry. Threads may share it, processes share its disk.

    Args:
        settings: which registry.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._api: RegistryApi = api_of(settings)
        self._copies = SchemaCopies(settings.folder, settings.urls[0])
        self._known: dict[SchemaReference, str] = {}
        self._registered: dict[tuple[str, str], tuple[int, float]] = {}  # until when
        self._no_rechecks_until = float("-inf")
        self._absent: dict[SchemaReference, float] = {}  # until when, by a monotonic clock
        self._rests_until = float("-inf")
        self._lock = threading.Lock()

    def schema(self, reference: SchemaReference) -> str:
        """See `SchemaSource`. It waits, for `grace_s` at most, for a schema that is not there.

        Raises:
            SchemaNotFoundError: it did not come, or is none of Avro's.
            DependencyError: `registry-unavailable`, `registry-refused`.
        """
        text = self._known.get(reference)
        if text is None:
            text = self._copies.read(reference)
            if text is None:
                text = self._fetched(reference)
                self._copies.keep(reference, text)
            self._known[reference] = text
        return text

    def register(self, subject: str, text: str) -> int:
        """See `SchemaRegistry`; each is said to the registry once in `RECHECK_S`.

        A registry that was set up anew gets it again so. While it is away, the number that it gave
        counts on.

        Raises:
            SchemaRefusedError: it is not taken.
            DependencyError: `registry-unavailable`, `registry-refused`.
        """
        known, until = self._registered.get((subject, text), (None, 0.0))
        now = time.monotonic()
        if known is not None and now < max(until, self._no_rechecks_until):
            return known
        try:
            question = partial(self._numbered, subject, text)
            number = self._answered(question) if known is None else question()
        except DependencyError:
            if known is None:
                raise
            self._no_rechecks_until = time.monotonic() + _ABSENT_S
            return known
        if known not in {None, number}:
            log.warning("registry.number_changed", subject=subject, was=known, now=number)
        self._registered[subject, text] = number, time.monotonic() + RECHECK_S
        return number

    def _numbered(self, subject: str, text: str) -> int:
        """Return the number of a schema, registered unless the settings leave that to others."""
        if self._settings.registers:
            return self._api.register(subject, text)
        try:
            return self._api.registered(subject, text)
        except MissingSchemaError as error:
            raise SchemaRefusedError(
                f"{subject} does not have the newest schema of its records, and {REGISTERS[0]} is"
                f" false: nobody registers it in {self._settings.urls[0]}",
                hint=f"register it there, or set output.converter: {{{REGISTERS[0]}: true}}; then:"
                " lakemark table resume TABLE",
            ) from error

    def _fetched(self, reference: SchemaReference) -> str:
        if time.monotonic() < self._absent.get(reference, 0):
            raise self._not_found(reference)
        begun = time.monotonic()
        grace_s = 0.0 if begun < self._rests_until else self._settings.grace_s
        awaiting = Retrying(
            retry=retry_if_exception_type(MissingSchemaError),
            stop=stop_after_delay(grace_s),
            wait=wait_exponential(multiplier=min(BACKOFF_S, grace_s / 4), max=_LONGEST_PAUSE_S),
            before_sleep=lambda state: _say_awaited(state, reference),
            reraise=True,
        )
        try:
            return awaiting(self._whole, reference)
        except MissingSchemaError as error:
            self._note_absent(reference, begun, grace_s)
            raise self._not_found(reference) from error

    def _note_absent(self, reference: SchemaReference, begun: float, grace_s: float) -> None:
        now = time.monotonic()
        with self._lock:
            if grace_s:
                self._rests_until = now + _REST * (now - begun)
            if len(self._absent) >= _REMEMBERED:
                self._absent.clear()
            self._absent[reference] = now + _ABSENT_S

    def _whole(self, reference: SchemaReference) -> str:
        """Return a schema with all that it needs, as it is registered where it needs nothing."""
        found = self._answered(partial(self._api.schema, reference))
        try:
            schema = schema_references.parsed(found.text)
            if not schema_references.undefined(schema):
                return found.text
            others = [schema_references.parsed(other.text) for other in self._needed(found)]
            return json.dumps(schema_references.inlined(schema, others))
        except ValueError as error:
            raise SchemaNotFoundError(
                f"the schema of {_named(reference)} in {self._settings.urls[0]} cannot be used:"
                f" {error}",
                hint="see what is registered there; then replay the dead letters",
            ) from error

    def _needed(self, found: FoundSchema) -> Iterator[FoundSchema]:
        """Yield the schemas that one needs, itself and through others, each once."""
        waiting = [*self._answered(found.needs)]
        seen: set[RegistryPart] = set()
        while waiting and len(seen) < _DEPTH:
            part = waiting.pop()
            if part in seen:
                continue
            seen.add(part)
            other = self._answered(partial(self._api.part, part))
            yield other
            waiting += self._answered(other.needs)

    def _answered(self, question: Callable[[], T]) -> T:
        asking = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=BACKOFF_S),
            before_sleep=_say_waiting,
            reraise=True,
        )
        return asking(question)

    def _not_found(self, reference: SchemaReference) -> SchemaNotFoundError:
        return SchemaNotFoundError(
            f"the schema registry {self._settings.urls[0]} has no schema of {_named(reference)}",
            hint="see whether it is the registry that the connector writes to; once the schema is"
            " there: lakemark dlq replay",
        )


def _named(reference: SchemaReference) -> str:
    kind = "id" if reference.kind == "id" else f"{reference.kind} id"
    return f"the {kind} {reference.number}"


def _may_pass(error: BaseException) -> bool:
    """Say whether it helps to ask again at once: a refused login is not mended by it."""
    return isinstance(error, LakemarkError) and error.code == UNAVAILABLE


def _reason(state: RetryCallState) -> str:
    return str(state.outcome.exception()) if state.outcome else ""


def _say_waiting(state: RetryCallState) -> None:
    log.warning("registry.waiting", attempt=state.attempt_number, reason=_reason(state))


def _say_awaited(state: RetryCallState, reference: SchemaReference) -> None:
    if state.attempt_number == 1:
        log.warning("registry.schema_awaited", kind=reference.kind, number=reference.number)
