"""Records as real connectors wrote them: the samples and the cases of other projects."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

GOLDEN = Path(__file__).parent.parent / "golden"


@dataclass(frozen=True)
class Golden:
    """One Kafka record; key, value and headers as bytes, the way a consumer sees them."""

    label: str
    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]]


def text(value: Any) -> bytes | None:
    """JSON as Kafka Connect writes it."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@cache
def samples(*, wrapped: bool) -> dict[str, Golden]:
    """The labelled records of Debezium 3.7 on PostgreSQL 15; topic.prefix `shop` or `shops`."""
    name = "labelled_schemas_on.json" if wrapped else "labelled_schemas_off.json"
    out = {}
    for label, record in json.loads((GOLDEN / name).read_text()).items():
        headers = [{"key": k, "value": text(v)} for k, v in record.get("headers") or []]
        value = record["value"]
        out[label] = Golden(
            label,
            record["topic"],
            record.get("offset", 0),
            text(record["key"]),
            text(value),
            headers,
        )
    return out


@cache
def case(name: str) -> list[Golden]:
    """The records of one case in golden/fixtures."""
    lines = (GOLDEN / "fixtures" / name / "records.jsonl").read_text().splitlines()
    return [
        Golden(name, r["topic"], r["offset"], text(r["key"]), text(r["value"]), [])
        for r in map(json.loads, lines)
    ]


def placed(records: list[Golden]) -> list[Golden]:
    """The same records with positions in the order of their offsets, as PostgreSQL's have them.

    Other connectors' records have none, nor those of Debezium before 1.5.
    """
    return [replace(r, value=_placed(r.value, 8 * (r.offset + 1))) for r in records]


def _placed(value: bytes | None, lsn: int) -> bytes | None:
    members = dict[str, msgspec.Raw]
    try:
        record = msgspec.json.decode(value or b"", type=members)
        if "payload" in record:
            payload = _placed(bytes(record["payload"]), lsn)
            return msgspec.json.encode({**record, "payload": msgspec.Raw(payload or b"null")})
        source = msgspec.json.decode(record["source"], type=members)
    except (msgspec.MsgspecError, KeyError):
        return value
    at = {"connector": "postgresql", "sequence": f'["{lsn}","{lsn}"]', "lsn": lsn}
    return msgspec.json.encode({**record, "source": {**source, **at}})


def cases() -> list[str]:
    return sorted(p.name for p in (GOLDEN / "fixtures").iterdir() if p.is_dir())
