"""The log: an event name and fields on every line, on the console or as JSON, without secrets.

    log = structlog.get_logger(__name__)
    log.info("snapshot.chunk_read", table="public.orders", chunk=7, rows=10_000)

Never a cell value: fields that could hold one are withheld, whoever passes them.
"""

import logging
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO
from urllib.parse import quote

import structlog

from lakemark.client_settings import jaas_quoted
from lakemark.settings import file_secret

MASK: Final = "•••"
# A secret shorter than this is not looked for in free text: it would blot out ordinary words.
_SHORTEST: Final = 4
_CELLS: Final = frozenset({"after", "before", "cell", "key", "payload", "row", "value", "values"})
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/@:\s]*):([^/@\s]+)@")
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class SecretFilter:
    """Replaces known secrets in any text, also as they look in URLs and JAAS lines.

    Secrets that were read from changed files since are known as well.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secrets)
        self._know(file_secret.seen())

    def _know(self, more: frozenset[str]) -> None:
        self._more = more
        forms = {
            form
            for secret in self._secrets | more
            if len(secret) >= _SHORTEST
            for form in (secret, quote(secret, safe=""), jaas_quoted(secret)[1:-1])
        }
        # Longest first: one secret may begin with another.
        ordered = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def __call__(self, text: str) -> str:
        """The text without secrets, and without the password of any URL."""
        if self._more is not file_secret.seen():
            self._know(file_secret.seen())
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        return _URL_PASSWORD.sub(rf"\1:{MASK}@", text)

    def anywhere(self, value: Any) -> Any:
        """The same inside of mappings and sequences; bytes become their length."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(k)): self.anywhere(v) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.anywhere(inner) for inner in value]
        if isinstance(value, bytes | bytearray | memoryview):
            return f"<{len(value)} bytes>"
        if value is None or isinstance(value, bool | int | float):
            return value
        return self(str(value))


def configure(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["console", "json"] = "console",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Sets up structlog and the standard library's logging; calling it again replaces the setup.

    Args:
        level: lowest level shown; Spark's and py4j's own lines are shown from warning on.
        form: ``console`` for people, ``json`` for one object per line.
        secrets: values that must not appear.
        stream: default: standard error.
    """
    out = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _Masking(SecretFilter(secrets)),
    ]
    renderer: structlog.typing.Processor
    if form == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(_LEVELS[level], logging.WARNING))
    logging.getLogger("lakemark").setLevel(_LEVELS[level])
    for noisy in ("py4j", "pyspark", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Of a batch that failed or was stopped it logs a trace; the supervisor says what happened.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)


class _Masking:
    """The last word before rendering: no secrets, no cells, no bytes."""

    def __init__(self, secrets: SecretFilter) -> None:
        self._secrets = secrets

    def __call__(
        self, _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        for name, value in list(event.items()):
            if name in _CELLS:
                event[name] = "<withheld>"
            elif not name.startswith("_"):
                event[name] = self._secrets.anywhere(value)
        return event
