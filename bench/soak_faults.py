"""What happens to a pipeline under soak: `FAULTS`, each with how it begins and how it ends.

Faults that last and keep lakemark from its source, its state or its lake have to be told by
`/readyz`. Hostile rows, tables, signals and connections must not be noticed at all: the tables stay
equal and both probes well.
"""

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from psycopg import sql

from stack.local import Database
from stack.processes import StackError, wait_for

if TYPE_CHECKING:
    from bench.soak import Soak

FREEZE_S: Final = (5.0, 20.0)
THAWED_S: Final = 60.0
CONNECTIONS: Final = 300  # far more than anybody who asks in good faith has open

PLACEHOLDER: Final = "__debezium_unavailable_value"
TEXTS: Final = (
    "", " ", "null", "NULL", "\\N", PLACEHOLDER, "\x1b[31mred\x1b[0m", "\u202egnp.exe", "\u2028\u2029",
    "a\x00b".replace("\x00", "\x01"), "'; DROP TABLE orders; --", "${file:/etc/passwd}", "🚲" * 50,
    '{"schema":{},"payload":{}}', '{"before":null,"after":{},"op":"d"}', "x" * 20_000, "\ufeff", "\\u0000",
)  # fmt: skip
DOCUMENTS: Final = (
    '{"schema":{"type":"struct"},"payload":{"op":"d","before":{"id":1},"after":null}}',
    '{"op":"d","source":{"lsn":0},"ts_ms":0}', "null", '"__debezium_unavailable_value"', "[[[[[[1]]]]]]",
    '{"_cdc":{"position":"00"}}', "1e400", '{"a":1,"a":2}',
)  # fmt: skip
MOMENTS: Final = (
    "infinity",
    "-infinity",
    "0044-03-15 00:00:00 BC",
    "9999-12-31 23:59:59.999999",
    None,
)

SCHEMA: Final = """
CREATE TABLE hostile (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schema text, payload text, document jsonb, moment timestamp, bytes bytea, texts text[]
);
CREATE TABLE hostile_keys (name text PRIMARY KEY, n int);
CREATE TABLE audit (id bigint PRIMARY KEY, op text, before jsonb, after jsonb, source jsonb, ts_ms bigint);
"""
NAMES: Final = (
    "_delta_log",
    "a/b",
    "..",
    "a b?c#d",
    "%2e%2e",
    "[red]",
    "\x1b[2J",
    "$(id)",
    "é\u202e",
)
"""Of tables that come and go."""

SIGNALS: Final = (
    b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 5000, b'{"id":1,"type":2,"data":3}',
    json.dumps({"id": "\x1b[31m", "type": "execute-snapshot", "data": {"data-collections": ["\x00"]}}).encode(),
    json.dumps(_ask := {"id": "slow", "type": "execute-snapshot",
                          "data": {"data-collections": ["((\\w|.)+)+X"]}}).encode(),
    json.dumps({**_ask, "data": {"data-collections": ["\\p{Lower}" * 4000]}}).encode(),
    json.dumps({**_ask, "data": {"data-collections": [".*"] * 20_000}}).encode(),
    json.dumps({**_ask, "data": {"data-collections": ["public.orders"], "additional-conditions": [
        {"data-collection": "public.orders", "filter": "(" * 3000}]}}).encode(),
    json.dumps({"id": "nobody", "type": "stop-snapshot", "data": {"id": "nobody"}}).encode(),
    json.dumps({"id": "x" * 60_000, "type": "no-such-type", "data": {}}).encode(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to the pipeline.

    Attributes:
        name: in the field's words.
        weight: how often it comes, compared with the others.
        strike: lets it begin.
        heal: ends it, as an operator would.
        is_told: whether `/readyz` has to answer 503 while it lasts.
    """

    name: str
    weight: int
    strike: Callable[["Soak"], None]
    heal: Callable[["Soak"], None] = lambda _: None
    is_told: bool = False


def prepare(database: Database) -> None:
    """Create the tables whose rows are hostile."""
    database.execute(SCHEMA)


# -- lakemark itself --------------------------------------------------------------------------------


def _kill(soak: "Soak") -> None:
    soak.lakemark.kill()


def _stop(soak: "Soak") -> None:
    soak.lakemark.stop()


def _start(soak: "Soak") -> None:
    soak.lakemark.start()


def _freeze(soak: "Soak") -> None:
    soak.lakemark.pause()
    soak.calm(FREEZE_S)


def _thaw(soak: "Soak") -> None:
    soak.lakemark.resume()


# -- what it needs ----------------------------------------------------------------------------------


def _kill_broker(soak: "Soak") -> None:
    soak.stack.kafka.kill()


def _freeze_broker(soak: "Soak") -> None:
    soak.stack.kafka.pause()
    soak.calm(FREEZE_S)


def _thaw_broker(soak: "Soak") -> None:
    """Let the broker go on; one that then answers no new client is killed, as an operator would."""
    soak.stack.kafka.resume()
    try:
        wait_for(soak.stack.kafka.answers, THAWED_S, "the broker to answer after it was frozen")
    except StackError as error:
        soak.say(f"{error}: it is killed")
        soak.stack.kafka.kill()
    soak.revive()


def _kill_connect(soak: "Soak") -> None:
    soak.stack.connect.kill()


def _pause_connector(soak: "Soak") -> None:
    soak.stack.connect.pause_connector(soak.database.name)


def _resume_connector(soak: "Soak") -> None:
    soak.stack.connect.resume_connector(soak.database.name)


def _kill_database(soak: "Soak") -> None:
    soak.stack.postgres.kill()


def _restart_database(soak: "Soak") -> None:
    soak.stack.postgres.restart()


def _revive(soak: "Soak") -> None:
    soak.revive()


def _fill_disk(soak: "Soak") -> None:
    soak.scratch.enter_context(soak.disk.full())


def _make_room(soak: "Soak") -> None:
    soak.scratch.close()


# -- strangers --------------------------------------------------------------------------------------


def _hostile_rows(soak: "Soak") -> None:
    """Insert, update and delete rows whose values look like something else."""
    rng = soak.rng
    with soak.database.connect() as connection:
        for _ in range(rng.randint(5, 40)):
            row = [rng.choice(TEXTS), rng.choice(TEXTS), rng.choice(DOCUMENTS), rng.choice(MOMENTS)]
            extra = [rng.randbytes(rng.randint(0, 64)), rng.choices(TEXTS, k=2)]
            connection.execute(
                "INSERT INTO hostile (schema, payload, document, moment, bytes, texts)"
                " VALUES (%s, %s, %s, %s, %s, %s)", [*row, *extra],
            )  # fmt: skip
        # Set by an UPDATE, the placeholder cannot be told from a column that was left alone.
        text = rng.choice([text for text in TEXTS if text != PLACEHOLDER])
        connection.execute("UPDATE hostile SET payload = %s WHERE id %% 3 = 0", [text])
        connection.execute("DELETE FROM hostile WHERE id %% 7 = %s", [rng.randrange(7)])
        for text in rng.sample(TEXTS, 6):
            connection.execute(
                "INSERT INTO hostile_keys VALUES (%s, 1)"
                " ON CONFLICT (name) DO UPDATE SET n = hostile_keys.n + 1", [text],
            )  # fmt: skip
        connection.execute("DELETE FROM hostile_keys WHERE name = %s", [rng.choice(TEXTS)])
        connection.execute(
            "INSERT INTO audit SELECT coalesce(max(id), 0) + 1, 'd', %s, %s, '{}', 0 FROM audit",
            [rng.choice(DOCUMENTS), rng.choice(DOCUMENTS)],
        )


def _hostile_table(soak: "Soak") -> None:
    """Create a table of a hostile name with two rows, or drop it where it is."""
    name = soak.rng.choice(NAMES)
    table = sql.Identifier("public", name)
    with soak.database.connect() as connection:
        if f"public.{name}" in soak.tables():
            connection.execute(sql.SQL("DROP TABLE {}").format(table))
            return
        connection.execute(
            sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, op text, {} text)").format(
                table, sql.Identifier(name)
            )
        )
        connection.execute(
            sql.SQL("INSERT INTO {} VALUES (1, 'a', 'b'), (2, 'c', 'd')").format(table)
        )


def _hostile_signals(soak: "Soak") -> None:
    """Write a few signals that ask for nothing one could do."""
    topic, producer = f"{soak.database.name}.signals", soak.stack.kafka.producer()
    for value in soak.rng.sample(SIGNALS, 5):
        producer.produce(topic, value, soak.database.name.encode())
    if producer.flush(30):
        raise StackError("signals could not be written in 30 s")


def _half_requests(soak: "Soak") -> None:
    """Open connections that send half a request and wait."""
    address = urlsplit(soak.lakemark.events("http.listening")[-1]["address"])
    for _ in range(CONNECTIONS):
        half = socket.create_connection((address.hostname, address.port or 80), timeout=10)
        soak.scratch.callback(half.close)
        try:
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
        except OSError:
            continue  # it was shown the door


def _snapshot(soak: "Soak") -> None:
    """Ask for a snapshot of some tables; it may end while the next faults come."""
    names = soak.rng.sample(
        ["public.orders", "public.customers", "public.line_items", "public.hostile"], 2
    )
    value: dict[str, Any] = {
        "id": f"s{soak.rng.getrandbits(32)}",
        "type": "execute-snapshot",
        "data": {"data-collections": names},
    }
    producer = soak.stack.kafka.producer()
    producer.produce(
        f"{soak.database.name}.signals", json.dumps(value).encode(), soak.database.name.encode()
    )
    if producer.flush(30):
        raise StackError("a signal could not be written in 30 s")


FAULTS: Final = (
    Fault("lakemark killed", 3, _kill, _start),
    Fault("lakemark stopped", 1, _stop, _start),
    Fault("lakemark frozen", 1, _freeze, _thaw),
    Fault("broker killed", 2, _kill_broker, _revive, is_told=True),
    Fault("broker frozen", 1, _freeze_broker, _thaw_broker),
    Fault("Connect killed", 1, _kill_connect, _revive, is_told=True),
    Fault("connector paused", 2, _pause_connector, _resume_connector, is_told=True),
    Fault("database killed", 1, _kill_database, _revive, is_told=True),
    Fault("database restarted", 1, _restart_database, _revive),
    Fault("disk full", 2, _fill_disk, _make_room, is_told=True),
    Fault("hostile rows", 4, _hostile_rows),
    Fault("hostile table", 4, _hostile_table),
    Fault("hostile signals", 3, _hostile_signals),
    Fault("half requests", 1, _half_requests, _make_room),
    Fault("snapshot", 4, _snapshot),
)
