"""The log: event and fields, two forms, no secrets, no cells."""

import io
import json
import logging

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from lakemark.client_settings import jaas_quoted
from lakemark.ops import log


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
    log.configure(level=level, form=form, secrets=secrets, stream=out)
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


def test_no_secret_in_any_place():
    read = lines(secrets=["s3cret/word", "s3cret"])
    logger = structlog.get_logger("lakemark.x")
    try:
        int("password is s3cret/word")
    except ValueError:
        logger.exception(
            "a.s3cret", where={"s3cret": ["x", ("s3cret%2Fword",)]}, error=ValueError("s3cret")
        )
    logger.info("url", address="postgresql://user:unknown-pw@host/db")
    logging.getLogger("py4j").error("java says %s", "s3cret/word")
    text = json.dumps(read(), ensure_ascii=False)
    assert "s3cret" not in text
    assert "unknown-pw" not in text
    assert "postgresql://user:•••@host/db" in text
    assert "Traceback" in text


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


def test_short_secrets_do_not_blot_out_words():
    assert log.SecretFilter(["a", "pw"])("a pwned parrot") == "a pwned parrot"


def test_a_secret_that_begins_with_another_is_masked_whole():
    assert log.SecretFilter(["word", "wordy-secret"])("a wordy-secret") == "a •••"


@given(st.lists(st.text(min_size=4), min_size=1), st.text(), st.text())
def test_a_secret_never_survives(secrets, before, after):
    hide = log.SecretFilter(secrets)
    for secret in secrets:
        for form in (secret, jaas_quoted(secret)[1:-1]):
            plain = before.replace(log.MASK, "") + form + after.replace(log.MASK, "")
            pieces = hide(plain).split(log.MASK)
            assert len(pieces) > 1, "nothing was masked"
