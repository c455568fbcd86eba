"""The log: an event name and fields on every line, on the console or as JSON, without secrets.

    log = structlog.get_logger(__name__)
    log.info("snapshot.chunk_read", table="public.orders", chunk=7, rows=10_000)

A line never has a cell value: fields that could hold one are withheld, whoever passes them.
"""

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from lakemark.errors import LakemarkError
from lakemark.ops import repeats
from lakemark.ops.terminal import shown
from lakemark.settings import masking

_CELLS: Final = frozenset({"after", "before", "cell", "key", "payload", "row", "value", "values"})
_FOREIGN: Final = frozenset({"exception", "stack"})  # what other programs have written
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def plain(value: Any, text: Callable[[str], str]) -> Any:
    """Return a value as JSON has it: mappings, sequences and their elements; bytes become a length.

    Args:
        value: of any type.
        text: is applied to each text in it, but not to keys.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner, text) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner, text) for inner in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if value is None or isinstance(value, bool | int | float):
        return value
    ours = isinstance(value, str | LakemarkError)
    return text(str(value)) if ours else masking.foreign(value)


def configure(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["console", "json"] = "console",
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library's logging; calling it again replaces the setup.

    Args:
        level: lowest level shown; Spark's and py4j's own lines are shown from warning on.
        form: ``console`` for people, ``json`` for one object per line.
        stream: default: standard error.
    """
    out = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderers: list[structlog.typing.Processor]
    if form == "json":
        renderers = [structlog.processors.JSONRenderer()]
    else:
        renderers = [_for_terminal, structlog.dev.ConsoleRenderer(colors=out.isatty())]
    structlog.configure(
        processors=[*shared, _of_ours, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=False,
    )
    handler = repeats.Handler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared, _of_others],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
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


def _of_ours(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Take secrets, cells and bytes out of a line; the last step before it is rendered."""
    for name, value in event.items():
        if name in _CELLS:
            event[name] = "<withheld>"
        elif name in _FOREIGN:
            event[name] = plain(value, masking.foreign)
        elif not name.startswith("_"):
            event[name] = plain(value, masking.own if name in masking.EXPLAINS else _as_it_is)
    return event


def _of_others(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Treat a library's line: all of it is foreign text."""
    for name, value in event.items():
        if not name.startswith("_"):
            event[name] = plain(value, masking.foreign)
    return event


def _for_terminal(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Show a line's texts for a terminal: no command, no line of its own in them.

    Texts within lists are escaped by Python itself.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = shown(value, lines=name in _FOREIGN)
    return event


def _as_it_is(text: str) -> str:
    return text
