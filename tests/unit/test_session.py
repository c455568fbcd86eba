"""The settings of a Spark session: slots for the stream and for chunks."""

import os
from pathlib import Path

import pytest

from lakemark import session
from lakemark.config import Config
from stack.local import CONNECTOR


def config(tmp_path: Path, **sections) -> Config:
    given = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "source": {"connector_file": str(CONNECTOR)},
        "lake": {"path": "lake"},
        "checkpoint": "checkpoint",
        "snapshot": {"parallelism": 3},
    }
    return Config.model_validate({**given, **sections}, context={"base": tmp_path})


@pytest.mark.parametrize(
    ("sections", "more"),
    [({}, 0), ({"database": {"url": "postgresql://shop@localhost/shop"}}, 3)],
)
def test_chunks_have_slots_of_their_own_and_the_stream_counts_cores(tmp_path, sections, more):
    cores = os.cpu_count()
    settings = session._local([], config(tmp_path, **sections))
    assert settings["spark.master"] == f"local[{cores + more},4]"
    assert settings["spark.default.parallelism"] == str(cores)


def test_a_master_of_the_user_s_has_its_own_number_of_cores(tmp_path):
    theirs = {"spark.master": "local[7]"}
    assert "spark.default.parallelism" not in session._local([], config(tmp_path, spark=theirs))
    other = {"spark.ui.enabled": "true"}
    assert "spark.default.parallelism" in session._local([], config(tmp_path, spark=other))
