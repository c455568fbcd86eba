"""The HTTP side of a pipeline that runs."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.kit.running import STATE_S, Running

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "status.json").read_text())


class HttpSide:
    """What a pipeline answers, from the address that its log names."""

    def __init__(self, running: Running) -> None:
        self.address = running.lakemark.wait_for_event("http.listening", STATE_S)["address"]

    def ask(self, path: str, body: object = None) -> tuple[int, str]:
        """Status and text of an answer; a POST where there is a body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        """The state, which must fit its schema."""
        found = json.loads(self.ask("/v1/status")[1])
        Draft202012Validator(SCHEMA).validate(found)
        return found

    def table(self, name: str) -> dict[str, Any]:
        """One table; empty while it is not there."""
        return next((t for t in self.status()["tables"] if t["name"] == name), {})

    def probes(self) -> tuple[int, int]:
        """What `/healthz` and `/readyz` answer."""
        return self.ask("/healthz")[0], self.ask("/readyz")[0]
