"""One table end to end: any history, any cuts, any crashes, and the table equals the source."""

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.log_model import Connector, Database, Shape
from tests.kit.table_model import DictLake, TableTask

EXAMPLES = 5000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 200


def history(seed, shape, *, deletes="hard", start=None, crashes=0.2, lake=None):
    """Runs one history; the database, the lake and the finished task."""
    dice = random.Random(seed)
    database = Database(shape, dice).run()
    begin = 0 if start is None else int(start * len(database.log))
    topic = Connector(database, dice).run(start=begin)
    lake = lake or DictLake(deletes)
    task = TableTask(topic, lake, dice, deletes=deletes, crashes=crashes)
    task.run()
    return database, lake, task


def differences(database, lake):
    """What is wrong, and which cells are (rightly) said to be unknown."""
    wrong, unknown = [], set()
    rows = lake.rows()
    for key in sorted(rows.keys() | database.rows.keys()):
        is_, should = rows.get(key), database.rows.get(key)
        if is_ is None or should is None:
            wrong.append((key, "lost" if is_ is None else "ghost", should or is_))
            continue
        absent = set(is_["_cdc"]["unavailable"] or ())
        unknown |= {(key, name) for name in absent}
        for name, value in should.items():
            if name not in absent and is_[name] != value:
                wrong.append((key, name, value, is_[name], is_["_cdc"]))
    return wrong, unknown


_SHAPES = st.builds(
    Shape,
    partitions=st.integers(1, 3),
    wrapped=st.booleans(),
    transactions=st.integers(1, 14),
    keys=st.integers(2, 7),
)
_SEEDS = st.integers(0, 2**40)


@given(seed=_SEEDS, shape=_SHAPES, deletes=st.sampled_from(["hard", "soft"]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_table_equals_the_source(seed, shape, deletes):
    database, lake, _ = history(seed, shape, deletes=deletes)
    assert differences(database, lake) == ([], set())
