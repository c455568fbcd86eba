"""The log: event and fields, two forms, no secrets, no cells."""

import io
import json
import logging

import pytest
import structlog

from lakemark.ops import log, repeats
from lakemark.settings import masking
from tests.kit.hostile_names import HOSTILE, is_harmless


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(form="json", level="info", secrets=()):
    out = io.StringIO()
    masking.know(lambda: masking.Masks(secrets))
    log.configure(level=level, form=form, stream=out)
    return lambda: [json.loads(x) if form == "json" else x for x in out.getvalue().splitlines()]


def test_json_lines_have_event_fields_level_and_time():
    read = lines()
    structlog.get_logger("lakemark.x").info("snapshot.chunk_read", table="public.a", rows=3)
    (line,) = read()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "snapshot.chunk_read", "level": "info", "table": "public.a", "rows": 3}


def test_console_lines_are_for_people():
    read = lines(form="console")
    structlog.get_logger("lakemark.x").info("snapshot.chunk_read", rows=3)
    assert "snapshot.chunk_read" in read()[0]
    assert "rows=3" in read()[0]
    assert "\x1b" not in read()[0]


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_levels(level, shown):
    read = lines(level=level)
    logger = structlog.get_logger("lakemark.x")
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)("x.y")
    assert len(read()) == shown


def test_no_secret_where_one_may_stand():
    read = lines(secrets=["s3cret/word", "s3cret"])
    logger = structlog.get_logger("lakemark.x")
    try:
        int("password is s3cret/word")
    except ValueError:
        logger.exception("a", error=ValueError("s3cret"), reason="s3cret%2Fword is wrong")
    logger.info("url", reason="postgresql://user:unknown-pw@host/db")
    logging.getLogger("py4j").error("java says %s", "s3cret/word", extra={"also": "s3cret"})
    text = json.dumps(read(), ensure_ascii=False)
    assert "s3cret" not in text
    assert "unknown-pw" not in text
    assert "postgresql://user:•••@host/db" in text
    assert "Traceback" in text


def test_names_and_our_own_words_are_no_secrets():
    read = lines(secrets=["public.s3cret", "tables", "lakemark", "s3cret-id"])
    logger = structlog.get_logger("lakemark.x")
    logger.info("tables.lakemark", table="public.s3cret", id="s3cret-id", tables=["tables"])
    (line,) = read()
    line.pop("timestamp")
    assert line == {
        "event": "tables.lakemark",
        "level": "info",
        "table": "public.s3cret",
        "id": "s3cret-id",
        "tables": ["tables"],
    }


def test_no_cell_value_and_no_bytes():
    read = lines()
    structlog.get_logger("lakemark.x").info("x", row={"a": 1}, before=b"x", blob=b"12345", keys=2)
    (line,) = read()
    assert line["row"] == line["before"] == "<withheld>"
    assert line["blob"] == "<5 bytes>"
    assert line["keys"] == 2


def test_lines_of_libraries_take_the_same_form_from_warning_on():
    read = lines(level="debug")
    logging.getLogger("py4j.clientserver").info("chatter")
    logging.getLogger("pyspark.sql").info("chatter")
    logging.getLogger("anything").info("chatter")
    logging.getLogger("py4j.clientserver").error("a trace of what the supervisor says better")
    logging.getLogger("py4j.java_gateway").warning("lost %s", "connection")
    assert [(line["event"], line["level"]) for line in read()] == [("lost connection", "warning")]


def test_configuring_twice_writes_each_line_once():
    lines()
    read = lines()
    structlog.get_logger("lakemark.x").info("x")
    logging.getLogger("py4j").warning("y")
    assert len(read()) == 2


# --- nothing of a line is a command for a terminal --------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", ["console", "json"])
def test_a_name_is_no_command_and_no_line(name, form):
    out = io.StringIO()
    log.configure(form=form, stream=out)
    logger = structlog.get_logger("lakemark.x")
    logger.warning("x.y", table=name, tables=[name], reason=f"of {name}", more={name: name})
    logging.getLogger("py4j").warning("java says %s", name)
    text = out.getvalue()
    assert is_harmless(text)
    assert text.count("\n") == 2
    try:
        {}[name]
    except KeyError:
        logger.exception("x.z")
    assert is_harmless(out.getvalue())


# --- lines that repeat ------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def repeated():
    """Lines as they are written, and a clock."""
    out, clock = io.StringIO(), Clock()
    log.configure(form="json", stream=out)
    formatter = logging.getLogger().handlers[0].formatter
    handler = repeats.Handler(out, repeats.Repeats(clock))
    handler.setFormatter(formatter)
    logging.getLogger().handlers = [handler]
    return lambda: [json.loads(line) for line in out.getvalue().splitlines()], clock


def test_of_a_kind_some_are_written_then_one_a_minute_with_the_number_of_the_others(repeated):
    read, clock = repeated
    logger = structlog.get_logger("lakemark.x")
    for at in range(600):  # ten minutes
        clock.now = at
        logger.warning("x.failed", reason=f"try {at} of 0x{at:x}", seconds=at)
    lines = read()
    assert [line.get("left_out", 0) for line in lines[:10]] == [0] * 10
    assert repeats.AT_ONCE + 9 <= len(lines) <= repeats.AT_ONCE + 11
    assert all(line["left_out"] > 50 for line in lines[11:])
    clock.now += 700
    logger.warning("x.other")
    left, other = read()[-2:]
    assert (left["event"], left["of"], other["event"]) == ("log.left_out", "x.failed", "x.other")
    told = sum(line.get("left_out", 0) for line in lines) + left["lines"]
    assert told + len(lines) == 600


def test_lines_of_libraries_and_their_traces_repeat_too(repeated):
    read, clock = repeated
    for at in range(1000):
        clock.now += 0.001
        try:
            [][at]
        except IndexError:
            logging.getLogger("asyncio").exception("socket.accept() failed\nfd=%d", at)
    assert len(read()) == repeats.AT_ONCE


def test_what_is_not_the_same_is_written(repeated):
    read, _ = repeated
    logger = structlog.get_logger("lakemark.x")
    for at in range(500):
        name = f"public.{'abcdefghij'[at % 10]}{'abcdefghij'[at // 10 % 10]}{'abcde'[at // 100]}"
        logger.warning("table.failed", table=name, reason="the same")
    for reason in ("one", "two", "three"):
        logger.warning("x.failed", reason=reason)
        logger.error("x.failed", reason=reason)
        logger.warning("y.failed", reason=reason)
    for at in range(100):
        logger.info("x.done", at=at)
    assert len(read()) == 500 + 9 + 100


def test_texts_that_somebody_makes_up_are_bounded(repeated):
    read, _ = repeated
    logger = structlog.get_logger("lakemark.x")
    for at in range(4000):
        logger.warning("http.odd", path="x" * (at % 2000))
    assert len(read()) <= 2 * 101 + repeats.AT_ONCE
