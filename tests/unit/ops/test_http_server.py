"""The server beside the query, on real sockets, and the settings that say where it is."""

import json
import socket
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lakemark.ops.board import Board
from lakemark.ops.http.server import serving
from lakemark.ops.metrics import Metrics
from lakemark.settings.config import Config, load
from lakemark.settings.layers import InvalidConfig

SMALL = """\
name: shop
kafka: {bootstrap_servers: localhost:9092}
source: {connect: {url: http://localhost:8083, connector: shop}}
lake: {path: ./lake}
checkpoint: ./checkpoint
"""


@pytest.fixture
def configured(tmp_path: Path):
    def _configured(section: str, environ: dict[str, str] | None = None) -> Config:
        file = tmp_path / "lakemark.yaml"
        file.write_text(f"{SMALL}{section}\n")
        return load(file, environ or {})

    return _configured


def serve(config: Config):
    board = Board("shop")
    return serving(config, board, Metrics(board))


def get(address: str, path: str, **headers: str) -> tuple[int, dict]:
    request = urllib.request.Request(address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_it_answers_while_the_block_runs_and_not_after(configured):
    with capture_logs() as logs, serve(configured("http: {bind: 127.0.0.1:0}")):
        (said,) = [line for line in logs if line["event"] == "http.listening"]
        code, found = get(said["address"], "/v1/status")
        assert (code, found["name"], found["pipeline"]["state"]) == (200, "shop", "starting")
        port = int(said["address"].rpartition(":")[2])
        assert reached(port)
    assert not reached(port)


def test_it_can_start_again_on_its_port_at_once(configured):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = configured(f"http: {{bind: 127.0.0.1:{port}}}")
    for _ in range(2):
        with serve(config):
            assert get(f"http://127.0.0.1:{port}", "/v1/status")[0] == 200


def test_a_port_in_use_is_a_warning_and_the_pipeline_runs(configured):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        went_on = False
        with capture_logs() as logs, serve(configured(f"http: {{bind: 127.0.0.1:{port}}}")):
            went_on = True
    assert went_on
    (warning,) = logs
    assert (warning["event"], warning["log_level"]) == ("http.off", "warning")
    assert "in use" in warning["reason"]
    assert "http.bind" in warning["hint"]


@pytest.mark.parametrize("word", ["none", "null", "~", "NONE"])
def test_it_can_be_off(configured, word):
    config = configured(f"http: {{bind: {word}}}")
    assert config.http.bind is None
    with capture_logs() as logs, serve(config):
        assert logs == []
    assert configured("", {"LAKEMARK_HTTP__BIND": "none"}).http.bind is None


def test_a_token_is_asked_for_beyond_this_machine(configured):
    config = configured("http: {bind: 0.0.0.0:0, token: hush-4hush}")
    assert "hush-4hush" in config.secrets()
    with capture_logs() as logs, serve(config):
        address = logs[0]["address"].replace("0.0.0.0", "127.0.0.1")
        assert get(address, "/v1/status")[0] == 401
        assert get(address, "/v1/status", Authorization="Bearer hush-4hush")[0] == 200
        assert "hush" not in str(logs)


# --- settings ---------------------------------------------------------------------------------


def test_the_defaults_are_of_this_machine(configured):
    http = configured("").http
    assert (http.bind, http.token, http.ready_lag) == (
        "127.0.0.1:8780",
        None,
        timedelta(seconds=60),
    )


@pytest.mark.parametrize("bind", ["localhost:1", "'[::1]:8780'", "127.1.2.3:0"])
def test_this_machine_needs_no_token(configured, bind):
    assert configured(f"http: {{bind: {bind}}}").http.token is None


@pytest.mark.parametrize(
    "bind", ["0.0.0.0:8780", "'[::]:8780'", "10.0.0.7:1", "lakemark.example:1"]
)
def test_other_addresses_without_a_token_are_a_mistake(configured, bind):
    with pytest.raises(InvalidConfig) as caught:
        configured(f"http: {{bind: {bind}}}")
    (problem,) = caught.value.problems
    assert problem.path.startswith("http")
    assert "http.token is needed" in problem.message
    assert configured(f"http: {{bind: {bind}, token: x}}").http.bind


@pytest.mark.parametrize(
    "bind", ["8780", "localhost", "'::1:80'", "http://h:1", "h:99999", "':80'", "h:1/x"]
)
def test_what_is_no_address_is_a_mistake(configured, bind):
    with pytest.raises(InvalidConfig) as caught:
        configured(f"http: {{bind: {bind}, token: x}}")
    assert "HOST:PORT" in caught.value.problems[0].message


@pytest.mark.parametrize("token", ['"a\\nb"', '" a"', '"a\\x00"'])
def test_a_token_that_no_header_can_hold_is_a_mistake(configured, token):
    with pytest.raises(InvalidConfig) as caught:
        configured(f"http: {{token: {token}}}")
    assert "no header can hold it" in caught.value.problems[0].message


def test_an_empty_token_is_a_mistake(configured):
    with pytest.raises(InvalidConfig) as caught:
        configured("http: {token: ''}")
    assert "empty" in caught.value.problems[0].message
