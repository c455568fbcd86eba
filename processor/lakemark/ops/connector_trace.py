"""The last cause in the trace of a connector's task, as it may be shown; pure.

A message may hold values of rows. So everything quoted, in brackets or with digits is left out,
unless it is a name in the connector's own settings. The message of a class that belongs to no known
driver or client is left out as a whole.
"""

import re
from collections.abc import Mapping
from typing import Final

from lakemark.connectors.connector_traits import ConnectorTraits

_HEAD: Final = re.compile(r"(?:Caused by: )?((?:[a-z_][\w$]*\.)+[A-Z][\w$]*)(?:: (.*))?")
_TELLING: Final = (
    "org.apache.kafka.common.errors.",
    "io.debezium.DebeziumException",
    "java.io.",
    "java.net.",
    "java.nio.",
    "javax.net.",
    "java.lang.OutOfMemoryError",
    "java.lang.NoClassDefFoundError",
)
_BRACKETS: Final = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_PIECE: Final = re.compile(r"\"[^\"]*\"|'(?:[^']|'(?=\w))*'|\S+")
_SAFE: Final = re.compile(r"[^\d=\"'()\[\]{}@]*")
_NAMES: Final = (
    *("topic.prefix", "database.hostname", "database.port", "database.dbname", "database.user"),
)
_LONGEST: Final = 200


def last_cause(trace: str, settings: Mapping[str, str], traits: ConnectorTraits) -> str:
    """Return the class of a trace's last error and its message as far as that may be shown.

    Args:
        trace: as Connect gives it.
        settings: the connector's: names among them are shown.
        traits: of its kind: which names, and which errors of its driver.
    """
    heads = [match for line in trace.split("\n") if (match := _HEAD.match(line))]
    if not heads:
        return ""
    name, message = heads[-1][1], _flat(heads[-1][2] or "")
    short = name.rpartition(".")[2]
    torn = message.count('"') % 2 or len(re.findall(r"'(?!\w)|(?<!\w)'", message)) % 2
    if not message or torn or not name.startswith((*_TELLING, *traits.driver)):
        return short
    names = (*_NAMES, *traits.shown)
    known = {settings[one] for one in names if settings.get(one) and "${" not in settings[one]}
    return f"{short}: {_shown(message, known)}"


def _flat(message: str) -> str:
    """Return a message without what is in brackets, from the innermost outwards."""
    while (shorter := _BRACKETS.sub("…", message)) != message:
        message = shorter
    return message


def _shown(message: str, names: set[str]) -> str:
    words = [_word(piece, names) for piece in _PIECE.findall(message)]
    text = re.sub(r"…(?: …)+", "…", " ".join(words))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _word(piece: str, names: set[str]) -> str:
    bare = piece.strip("\"'()[]{},.;")
    if bare in names or (set(bare.split(":")) <= names and ":" in bare):
        return piece
    return piece if _SAFE.fullmatch(piece) else "…"
