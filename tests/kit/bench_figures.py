"""Files of the benchmarks as they would be written, and the report that is made of them, taken apart."""

import re

from bench import page, results

(
    SMALL,
    FRESH,
    RANDOM,
    HOT,
    SERIES,
    MARIADB,
    AVRO,
    TABLES,
    RATE,
    FAR,
    *_,
    VERIFY,
    LATENCY,
    CLUSTER,
) = results.PUBLISHED
(SNAPSHOT, WHOLE, OF_MARIADB) = (one for one in results.PUBLISHED if one.bench == "snapshot")
NUMBER = re.compile(r"(?<![A-Za-z\d,.])\d[\d,]*(?:\.\d+)?")


def contestant(who, steady, *, start=0, correct=True, **also):
    """A row of `stream` whose other figures follow from one of them."""
    return {
        "start_rows": start,
        "who": who,
        "correct": correct,
        "events": 7_654_321,
        "seconds": 61.5,
        "events_per_s": steady // 2,
        "steady_events_per_s": steady,
        "batches": 17,
        "seconds_per_batch": 3.19,
        "cpu_seconds": 93.7,
        "peak_rss_mb": 2871,
        "written_per_byte": 1.83,
        "read_seconds": 0.47,
        "seconds_for_batch": 4.56,
        **also,
    }


def figures(one, rows, **also):
    """A benchmark's file."""
    return {
        "bench": one.bench,
        "settings": {"events": 7_654_321, "memory": "2g"},
        "machine": {
            "begun": "2031-05-06T07:08:09+00:00", "cpu": "Some CPU", "cores": 6,
            "memory_mb": 24105, "system": "Linux 6.99", "load_before": [0.74, 0.25, 0.09],
        },
        "versions": {"pyspark": "4.2.0", "flink": "1.20.5"},
        "rows": rows,
        "command": list(one.command),
        **also,
    }  # fmt: skip


def wrong(who, difference):
    return {"who": who, "table": "orders", "difference": difference}


def written(found, pictures=()):
    return page.document(results.PUBLISHED, found, pictures)


def section(text, one):
    return text.split(f"## {one.title}\n")[1].split("\n## ")[0]


def tables(text):
    """Rows of all tables of a text, each as a dict by its headings."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [[c.strip() for c in line[1:-1].split(" | ")] for line in block.splitlines()]
        found.append([dict(zip(lines[0], line, strict=True)) for line in lines[2:]])
    return found


def numbers(text):
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def all_of():
    """A file of every benchmark."""
    contest = [contestant("lakemark-x", 30_000), contestant("usual", 6_000)]
    sizes = [contestant(*each, start=n) for n in (1000, 2000)
             for each in (("lakemark-x", 9000 + n), ("usual", 700))]  # fmt: skip
    many = [{**row} for row in contest]
    for row in many:
        del row["start_rows"], row["seconds_for_batch"]
        row["written_per_byte"] = None
    taken = [
        {"who": who, "rows": rows, "seconds": seconds, "rows_per_s": speed, "lag_s": lag,
         "correct": correct}
        for who, rows, seconds, speed, lag, correct in (
            ("copy", 5000, 1.1, 4545, None, None),
            ("debezium 1024", 5000, 50.0, 100, None, True),
            ("debezium 1024 busy", 5000, 62.5, 80, None, None),
            ("log alone", 0, 1, 0, 0.55, None),
            ("lakemark 2", 5000, 4.0, 1250, 0.72, True),
            ("lakemark 2 busy", 5000, 6.25, 800, 1.17, True),
        )
    ]  # fmt: skip
    proved = [
        {"who": who, "rows": rows, "seconds": seconds, "rows_per_s": speed, "lag_s": lag,
         "correct": correct, **used}
        for who, rows, seconds, speed, lag, correct, used in (
            ("copy", 6000, 1.5, 4000, None, None, {}),
            ("alone", 0, 1, 0, 0.57, None, {}),
            ("verify", 6000, 4.8, 1250, 0.74, True, {"cpu_seconds": 3.3, "peak_rss_mb": 1234}),
        )
    ]  # fmt: skip
    rates = [
        {"tables": 30, "who": who, "correct": True, "events": 90_000, "offered_per_s": 4998,
         "batches": 21, "events_per_batch": 14_321, "seconds_per_batch": 2.87, "late_p50": p50,
         "late_p99": 6.5, "late_first_half": 4.21, "late_second_half": 4.34, "cores_used": 1.62,
         "peak_rss_mb": 2199, "cpu_seconds": 150.5}
        for who, p50 in (("usual", 120.5), ("lakemark-x", 4.25))
    ]  # fmt: skip
    away = [
        {"tables": 30, "who": who, "correct": True, "seconds_per_batch": seconds, "requests": asked}
        for who, seconds, asked in (("lakemark-x", 0.5, 5.0), ("delta-rs", 4.5, 10.0))
    ]
    stages = [
        {"stage": "database", "cpu_seconds": 21.5, "percent": 71.7},
        {"stage": "read", "cpu_seconds": 8.5, "percent": 28.3},
    ]
    late = [
        {"who": "tables", "what": "start to first commit", "count": 1, "p50": 21.25, "p99": 21.25,
         "lost": 0},
        {"who": "tables", "what": "table", "count": 6011, "p50": 1.234, "p99": 3.456, "lost": 0},
    ]  # fmt: skip
    spent = [
        {"who": who, "correct": True, "count": 7_000_001, "driver_bytes": 0.31,
         "shuffled_bytes": 201.5, "driver_us": 1.25, "workers_us": 23.75}
        for who in ("an event", "a row of a snapshot")
    ]  # fmt: skip
    return {
        "small": figures(SMALL, contest),
        "small-fresh": figures(FRESH, [contestant("lakemark-x", 22_000)]),
        "large-random": figures(RANDOM, [contestant("lakemark-x", 20_000, start=10_000)]),
        "large-hot": figures(HOT, [contestant("lakemark-x", 21_000, start=10_000)]),
        "series": figures(SERIES, sizes),
        "mariadb": figures(MARIADB, [contestant("lakemark-x, mariadb", 29_000)]),
        "avro": figures(AVRO, [contestant("lakemark-x, avro", 30_500)]),
        "tables": figures(TABLES, many),
        "rate": figures(RATE, rates),
        "far": figures(FAR, away),
        "snapshot": figures(SNAPSHOT, taken),
        "snapshot-large": figures(WHOLE, taken[:2] + taken[4:5], where=stages),
        "snapshot-mariadb": figures(OF_MARIADB, taken[:2] + taken[4:5]),
        "verify": figures(VERIFY, proved),
        "latency": figures(LATENCY, late),
        "cluster": figures(CLUSTER, spent),
    }
