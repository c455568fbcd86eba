"""How fast typed rows become the records that the connector would have written.

    ./dev bench rendering [--rows N]

The rows of `snapshot.py`'s orders, made here; no server is started. The best of five rounds, one
core. The images are decoded again: the exit code is 1 if that does not give the same rows.
"""

import argparse
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from hashlib import md5
from typing import Any, Final

import pyarrow as pa

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.json.envelopes import EnvelopeTemplate, Reading
from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes

ROUNDS: Final = 5
BEGUN: Final = 1_767_225_600_000_000  # 2026-01-01 in microseconds
CATALOG: Final = (
    CatalogColumn("id", "int8", not_null=True, key_position=1),
    CatalogColumn("customer", "int4", not_null=True),
    CatalogColumn("status", "text", not_null=True),
    CatalogColumn("note", "text", not_null=True),
    CatalogColumn("total", "numeric", ((12 << 16) | 2) + 4, not_null=True),
    CatalogColumn("at", "timestamptz", not_null=True),
)
MODEL: Final = (
    b'{"before":null,"after":null,"source":{"version":"3.7.0.Final","connector":"postgresql",'
    b'"name":"shop","ts_ms":1,"snapshot":"false","db":"shop","sequence":"[null,\\"1\\"]","ts_us":1,'
    b'"ts_ns":1,"schema":"public","table":"orders","txId":1,"lsn":1,"xmin":null,"origin":null,'
    b'"origin_lsn":null},"transaction":null,"op":"r","ts_ms":1,"ts_us":1,"ts_ns":1}'
)


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if the images are not those of the rows."""
    parser = argparse.ArgumentParser(prog="./dev bench rendering")
    parser.add_argument("--rows", type=int, default=200_000)
    count = parser.parse_args(argv).rows
    modes = HandlingModes()
    schema = from_catalog("public.orders", CATALOG, ["id"], modes)
    rendering = Rendering(schema, modes)
    rows = orders(schema.arrow(), count)
    reading = Reading("public", "orders", 1, 1, {"sequence": '["1","1"]'})
    template = EnvelopeTemplate(MODEL)

    def records() -> tuple[list[bytes], list[bytes]]:
        keys, images = rendering.keys(rows), rendering.images(rows)
        values = template.values(images.objects, reading).to_pylist()
        return keys.objects.to_pylist() if keys else [], values

    show("images", count, lambda: rendering.images(rows))
    show("records, keys and values as bytes", count, records)
    images = rendering.images(rows).objects.to_pylist()
    return 0 if decode_rows(images, schema, modes).columns.equals(rows) else 1


def orders(schema: pa.Schema, count: int) -> pa.StructArray:
    """The rows that `snapshot.py` fills its tables with."""
    numbers = range(1, count + 1)
    values: list[list[Any]] = [
        list(numbers),
        [n % 5000 for n in numbers],
        [f"status-{n % 7}" for n in numbers],
        [md5(str(n).encode(), usedforsecurity=False).hexdigest() for n in numbers],
        [Decimal(n * 37).scaleb(-2) for n in numbers],
        [BEGUN + n * 1_000_000 for n in numbers],
    ]
    columns = [pa.array(v, f.type) for v, f in zip(values, schema, strict=True)]
    return pa.StructArray.from_arrays(columns, names=schema.names)


def show(what: str, count: int, work: Callable[[], object]) -> None:
    """Prints the best round."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    best = min(seconds)
    print(f"{what:35}{count / best:12,.0f} rows/s{best / count * 1e6:8.2f} µs a row")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
