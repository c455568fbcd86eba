"""The HTTP server of a pipeline in a process of its own, which may open few files.

    python -m tests.kit.http_child FILES

It writes its address, and then, for every line that it reads, how many files are open and how many
have been at most since the line before, as JSON. The log is standard error.
"""

import json
import resource
import sys
import threading
import time
from pathlib import Path

from lakemark.ops import log
from lakemark.ops.board import Board
from lakemark.ops.http.server import serving
from lakemark.ops.metrics import Metrics
from lakemark.settings.config import Config


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Most(threading.Thread):
    """Looks how many files are open, all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen = 0

    def run(self) -> None:
        while True:
            try:
                self.seen = max(self.seen, open_files())
            except OSError:  # there is none left to look with
                self.seen = 10**6
            time.sleep(0.0005)


def main(files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    log.configure(form="json")
    config = Config.model_validate({
        "name": "shop",
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "source": {"connect": {"url": "http://localhost:8083", "connector": "shop"}},
        "lake": {"path": "/nowhere/lake"},
        "checkpoint": "/nowhere/checkpoint",
        "http": {"bind": "127.0.0.1:0"},
    })  # fmt: skip
    board = Board("shop")
    board.pipeline("streaming")
    most = Most()
    most.start()
    with serving(config, board, Metrics(board)):
        for _ in sys.stdin:
            print(json.dumps({"open": open_files(), "most": most.seen}), flush=True)
            most.seen = 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
