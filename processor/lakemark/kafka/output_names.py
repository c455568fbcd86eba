"""Output topics by name: of a table, its consumer group, and the settings a topic is made with.

Pure. `output.publisher` and `output.transaction` write them; `lakemark doctor` and `lakemark plan`
show them.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from lakemark.settings.names import topic_safe
from lakemark.settings.table_id import plain_of

ID: Final = "lakemark.id"  # header of every record: the same when it is written again
TRANSACTION_MS: Final = 300_000  # a stretch of one partition is one transaction

_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def topic_of(prefix: str, table: str) -> str:
    """The output topic of a table, written as the connector writes names of topics."""
    return f"{prefix}.{topic_safe(plain_of(table))}"


def groups_of(pipeline: str) -> str:
    """Return what the names of all consumer groups with marks and transactional ids begin with."""
    return f"{pipeline}.output."


def group_of(pipeline: str, table: str) -> str:
    """The consumer group under which the marks of a table's output topic are kept.

    Kafka's client takes printable ASCII only: other characters are written as `%C3%9C`, and no two
    tables have one name.
    """
    return f"{groups_of(pipeline)}{quote(table, safe=_PLAIN)}"


def topic_settings(max_bytes: int) -> dict[str, str]:
    """Settings of an output topic as it is made."""
    return {"cleanup.policy": "compact", "max.message.bytes": str(max_bytes)}


def hidden(prefix: str, change_topics: Iterable[str]) -> list[str]:
    """Change topics that would be taken for output topics, and not be read."""
    return sorted(topic for topic in change_topics if topic.startswith(f"{prefix}."))
