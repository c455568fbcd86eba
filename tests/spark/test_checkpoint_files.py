"""The checkpoint's own files, with Hadoop and without: whole, whenever a process ends."""

import json
import shutil
from types import SimpleNamespace

import pytest

from lakemark.errors import DependencyError, PipelineError
from lakemark.settings.config import Config
from lakemark.spark.hadoop_files import HadoopFiles
from lakemark.state import data_loss, stored_form
from lakemark.state.checkpoint import LOCAL, SPARK, Identity
from lakemark.state.ownership import Owner
from lakemark.state.tables import PipelineState
from lakemark.supervisor import Supervisor

pytestmark = pytest.mark.spark

TOPIC = "shop.public.orders"
IDENTITY = Identity("shop", 2)


class DiedError(BaseException):
    """The process is killed here."""


class Files:
    """The file system; the process ends at one of the steps that change something."""

    def __init__(self, files, dies_at):
        self.files, self.left = files, dies_at

    def __getattr__(self, name):
        done = getattr(self.files, name)

        def step(*given):
            if name in {"create", "rename", "delete"}:
                self.left -= 1
                if self.left < 0:
                    if name == "create":
                        done(given[0], b"")  # a draft of which nothing was written
                    raise DiedError
            return done(*given)

        return step


@pytest.fixture
def at(checkpoint_of, tmp_path):
    """Makes checkpoints, each a process of its own: of a folder, and when it ends."""

    def made(folder="one", dies_at=None):
        checkpoint = checkpoint_of(tmp_path / folder)
        if dies_at is not None:
            checkpoint._files = Files(checkpoint._files, dies_at)
        return checkpoint

    return made


FIRST = {TOPIC: {0: 0}}


def state(batch, offset):
    return PipelineState(batch=batch, offsets={TOPIC: {0: offset}}, epochs=[{TOPIC: {0: 5}}])


def filled(checkpoint):
    """Batch 4 is committed, batch 5 was under way."""
    checkpoint.claim(IDENTITY)
    for batch, offset in ((4, 40), (5, 50)):
        planned = ["v1", "{}", json.dumps({TOPIC: {"0": offset}}), '{"shop.control":{"0":3}}']
        checkpoint._write(f"offsets/{batch}", "\n".join(planned).encode())
        checkpoint.save(state(batch, offset))
    checkpoint._write("commits/4", b"v1\n{}")
    return checkpoint


def begin_again(state):
    data_loss.begin_again(state, FIRST, anew={TOPIC})


def content(checkpoint):
    """What it says of the batches, and where the topic is."""
    return [
        (checkpoint.offsets(batch), stored_form.encode(checkpoint.load(batch))) for batch in (4, 5)
    ]


def test_a_new_beginning_is_whole_wherever_the_process_ends(at):
    before = content(filled(at("whole")))
    again = at("whole")
    again.amend(begin_again, FIRST, own=())
    after = content(again)
    assert [found[0][0] for found in after] == [{TOPIC: {0: 0}}] * 2
    assert again.newest().epochs == [{}]

    steps, seen = 0, set()
    while True:
        folder = f"dies-{steps}"
        filled(at(folder))
        try:
            at(folder, dies_at=steps).amend(begin_again, FIRST, own=())
        except DiedError:
            died = True
        else:
            died = False
        next_one = at(folder)
        next_one.claim(IDENTITY)
        found = content(next_one)
        assert found in (before, after)
        seen.add(found == after)
        next_one.amend(begin_again, FIRST, own=())
        assert content(next_one) == after, "it can be repeated"
        if not died:
            break
        steps += 1
    assert steps > 20
    assert seen == {True, False}


def test_the_owner_is_known_wherever_the_one_that_takes_over_ends(at):
    first, second = Owner("first"), Owner("second")
    steps, seen = 0, []
    while True:
        folder = f"owner-{steps}"
        at(folder).take(first)
        try:
            at(folder, dies_at=steps).take(second)
        except DiedError:
            seen.append(at(folder).owner())
            at(folder).take(Owner("third"))
            assert at(folder).owner() == Owner("third")
            steps += 1
        else:
            break
    assert at(folder).owner() == second
    assert seen == sorted(seen, key=lambda owner: owner.token)
    assert set(seen) == {first, second}


def test_a_state_that_is_written_again_is_the_later_one(at):
    checkpoint = filled(at())
    checkpoint.save(state(5, 60))
    assert at().newest().offsets == {TOPIC: {0: 60}}
    assert at().load(4).offsets == {TOPIC: {0: 40}}


def test_a_file_system_that_refuses_is_away_and_says_why(at, tmp_path):
    (tmp_path / "one").write_text("no folder")
    with pytest.raises(DependencyError, match="cannot be used") as caught:
        at().take(Owner("first"))
    assert caught.value.code == "checkpoint-unavailable"
    assert "\n" not in caught.value.message
    assert at("nothing").owner() is None


def test_a_file_system_that_hadoop_has_not_is_away_and_says_why(spark):
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    with pytest.raises(DependencyError, match="nowhere"):
        HadoopFiles(spark._jvm, settings, "nowhere://x/y")


def test_another_pipelines_checkpoint_is_left_alone(at, tmp_path):
    owner = Owner("of shop")
    ours = filled(at())
    ours.take(owner)
    (tmp_path / "x.json").write_text("{}")
    document = {
        "name": "copied",
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "source": {"connector_file": "x.json"},
        "lake": {"path": str(tmp_path / "lake")},
        "stream": {"shards": 2},
        "checkpoint": str(tmp_path / "one"),
    }
    config = Config.model_validate(document, context={"base": tmp_path})
    supervisor = Supervisor(config, once=False)
    supervisor.turn._held.set()
    with pytest.raises(PipelineError, match="was made for pipeline 'shop'"):
        supervisor._checkpoint(SimpleNamespace(checkpoint=at, kind=SPARK))
    with pytest.raises(PipelineError, match="by the runner 'spark', not by 'local'"):
        supervisor._checkpoint(SimpleNamespace(checkpoint=at, kind=LOCAL))
    assert at().owner() == owner
    ours.check_owner()


# --- a checkpoint that is removed ---------------------------------------------------------------


def test_a_checkpoint_that_is_removed_is_lost_and_nobody_took_it_over(at, tmp_path):
    checkpoint = at()
    checkpoint.take(Owner("me"))
    checkpoint.claim(IDENTITY)
    checkpoint.check_owner()
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(PipelineError, match="was removed or emptied") as lost:
        checkpoint.check_owner()
    assert (lost.value.code, lost.value.retried) == ("checkpoint-lost", False)
    (tmp_path / "one" / "offsets").mkdir(parents=True)
    (tmp_path / "one" / "offsets" / "57").write_text(
        "v1\n{}\n{}"
    )  # what Spark wrote before it ended
    with pytest.raises(PipelineError, match="nothing says of which pipeline") as left:
        at().require(IDENTITY)
    assert left.value.code == "checkpoint-lost"
    assert "empty it" in left.value.hint
    shutil.rmtree(tmp_path / "one")
    at().require(IDENTITY)


def test_what_the_first_batch_begins_with_is_kept_until_there_is_one(at):
    checkpoint = at()
    assert checkpoint.is_new()
    assert checkpoint.load(-1) == PipelineState(), "as of a checkpoint of an older version"
    first = PipelineState(control=7, epochs=[{}])
    checkpoint.begin(first)
    assert not checkpoint.is_new()
    assert (checkpoint.load(-1), checkpoint.newest(), checkpoint.goes_on()) == (
        first,
        first,
        (first, {}),
    )
    checkpoint.amend(begin_again, FIRST, own=())
    assert checkpoint.newest().epochs == [{}]
    assert checkpoint.newest().control == 7
    filled(checkpoint)
    assert checkpoint.newest().batch == 5
    assert not filled(at("two")).is_new(), "which an older version has begun"
