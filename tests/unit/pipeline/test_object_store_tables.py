"""Tables in an object store: every answer is waited for, and none may be what it was before."""

from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark import tasks
from lakemark.errors import DependencyError
from lakemark.model import change_batch
from lakemark.sink.delta import (
    commits,
    deletion_vectors,
    delta_rs,
    maintenance,
    object_client,
    rebuild,
    table_log,
)
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.delta.pending import Halves
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.sink.names import rebuild_path
from stack.object_store import serving
from tests.kit.delta_table import merged, numbered
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, event
from tests.kit.sink_contract import COLUMNS
from tests.kit.sink_contract import row as of
from tests.kit.write_sets import at, delete, table_schema
from tests.unit.test_tasks import PLAN

pytestmark = pytest.mark.usefixtures("cache")

ENGINES = [TASK_MERGE, DELETION_VECTORS]
ADDRESS = "s3://lake/public/t"
COMMITS = r"/_delta_log/\d+\.json$"
SOON = {"max_retries": "1", "retry_timeout": "1s"}


@pytest.fixture
def far():
    with serving() as found:
        yield found


@pytest.fixture
def store(far):
    return TableStore(ADDRESS, {**far.options, **SOON})


# -- tables ------------------------------------------------------------------------------------------


def rows(address: str, options: dict[str, str]) -> dict[str, Any]:
    found = pa.table(DeltaTable(address, storage_options=options).scan(columns=["id", "b"]))
    assert len(set(found.column("id").to_pylist())) == found.num_rows
    return {row["id"]: row["b"] for row in found.to_pylist()}


@pytest.mark.parametrize("folder", ["my%20lake/t", "ä/t"])
def test_a_table_in_a_folder_whose_name_is_encoded_gets_its_rows(far, folder):
    address, more = f"s3://lake/{folder}", {"storage_options": far.options}
    delta_rs.ensure(address, table_schema(COLUMNS), key=["id"], **more)
    DeltaTable(address, **more).create_checkpoint()
    for version in range(1, 4):
        opened = commits.reopened(address, far.options, engine=DELETION_VECTORS)
        merged(deletion_vectors, address, numbered(range(3), version, version), version, opened=opened, **more)  # fmt: skip
    assert rows(address, far.options) == {str(n): 3 for n in range(3)}


@pytest.mark.parametrize(("status", "code"), [(403, "lake-forbidden"), (503, "lake-unavailable")])
def test_a_table_that_is_open_says_why_it_cannot_go_on(far, store, status, code):
    merge = partial(merged, deletion_vectors, ADDRESS, storage_options=store.options)
    delta_rs.ensure(ADDRESS, table_schema(COLUMNS), key=["id"], storage_options=store.options)
    merge(numbered(range(3), 1), 1)
    far.refuse(COMMITS, status)
    with pytest.raises(DependencyError) as caught:
        commits.reopened(ADDRESS, store.options, engine=DELETION_VECTORS)
    assert caught.value.code == code
    assert caught.value.retried
    far.refuse("", 0)
    assert merge(numbered(range(3), 2), 2).updated == 3


def test_a_batch_is_five_requests(far, store):
    """The newest commit is there, no later one is; rows, vectors, commit."""
    more = {"storage_options": store.options}
    delta_rs.ensure(ADDRESS, table_schema(COLUMNS), key=["id"], **more)
    for version in range(1, 4):
        merged(deletion_vectors, ADDRESS, numbered(range(9), version), version, **more)
    far.requests()
    for version in range(4, 7):
        opened = commits.reopened(ADDRESS, store.options, engine=DELETION_VECTORS)
        changes = [*numbered(range(version), version, version), delete(of("8"), at(version))]
        merged(deletion_vectors, ADDRESS, changes, version, opened=opened, **more)
        asked = [(how, name.split("/t/")[1]) for how, name in far.requests()]
        assert [how for how, _ in asked] == ["HEAD", "GET", "PUT", "PUT", "PUT"]
        kinds = ("_delta_log/", "_delta_log/", "part-", "_lakemark/deletion", "_delta_log/")
        assert all(name.startswith(kind) for (_, name), kind in zip(asked, kinds, strict=True))
    assert rows(ADDRESS, store.options) == {str(n): max(n, 6) for n in range(8)}


def test_a_copy_that_was_put_back_is_not_the_table_that_is_known(far, store):
    more = {"storage_options": store.options}
    delta_rs.ensure(ADDRESS, table_schema(COLUMNS), key=["id"], **more)
    merged(deletion_vectors, ADDRESS, numbered(range(9), 1, 1), 1, **more)
    far.save()
    merged(deletion_vectors, ADDRESS, numbered(range(5), 2, 2), 2, **more)
    far.restore()
    opened = commits.reopened(ADDRESS, store.options, engine=DELETION_VECTORS)
    merged(deletion_vectors, ADDRESS, numbered(range(2), 3, 3), 3, opened=opened, **more)
    assert rows(ADDRESS, store.options) == {str(n): 3 if n < 2 else 1 for n in range(9)}
    opened = commits.reopened(ADDRESS, store.options, engine=DELETION_VECTORS)
    merged(deletion_vectors, ADDRESS, numbered(range(1), 4, 4), 4, opened=opened, **more)
    assert rows(ADDRESS, store.options) == {"0": 4, "1": 3, **{str(n): 1 for n in range(2, 9)}}


def test_another_history_of_the_same_length_is_noticed(far, store):
    more = {"storage_options": store.options}
    delta_rs.ensure(ADDRESS, table_schema(COLUMNS), key=["id"], **more)
    merged(deletion_vectors, ADDRESS, numbered(range(9), 1, 1), 1, **more)
    far.save()
    merged(deletion_vectors, ADDRESS, numbered(range(5), 2, 2), 2, **more)
    known = table_log.last_known(ADDRESS)
    far.restore()
    maintenance.forget()
    merged(deletion_vectors, ADDRESS, numbered(range(5, 9), 3, 3), 3, **more)
    assert DeltaTable(ADDRESS, **more).version() == known.version
    table_log.forget()
    table_log._keep(store, known)  # as a process knows it that was asleep
    opened = commits.reopened(ADDRESS, store.options, engine=DELETION_VECTORS)
    merged(deletion_vectors, ADDRESS, numbered(range(1), 4, 4), 4, opened=opened, **more)
    expected = {"0": 4, **{str(n): 1 for n in range(1, 5)}, **{str(n): 3 for n in range(5, 9)}}
    assert rows(ADDRESS, store.options) == expected


@pytest.fixture
def only_delta_rs(monkeypatch):
    """Credentials that our own client does not find."""

    class Refused:
        store, folder = None, ""

        def __getattr__(self, _):
            raise PermissionError("no credentials")

    monkeypatch.setattr(object_client, "client", lambda *_: Refused())


@pytest.mark.slow
def test_tables_of_task_merge_need_delta_rs_alone(far, store, only_delta_rs):
    """Merges, compaction, checkpoints."""
    more = {"storage_options": store.options}
    delta_rs.ensure(ADDRESS, table_schema(COLUMNS), key=["id"], **more)
    policy = Policy(checkpoint_every=4, spare_files=3)
    compacted = 0
    for version in range(1, 10):
        done = merged(delta_rs, ADDRESS, numbered([version], version), version, **more)
        if maintenance.wants_upkeep(ADDRESS, done, policy):
            found = maintenance.maintain(
                ADDRESS, key=["id"], engine=TASK_MERGE, policy=policy, **more
            )
            compacted += found.compacted
    assert compacted
    assert rows(ADDRESS, store.options) == {str(n): n for n in range(1, 10)}
    native = TableStore(ADDRESS, store.options, native=True)
    assert table_log.newest_checkpoint(native, 99)[0] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_halves_wait_where_the_engine_has_its_files(far, store, monkeypatch, engine):
    halves = Halves(ADDRESS, "query-0000", store.options, engine)
    packet = pa.table({"key": [b"1"]})
    delta_rs.ensure(ADDRESS, table_schema(COLUMNS), key=["id"], storage_options=store.options)
    assert halves.load(0, "stream") is None
    if engine == TASK_MERGE:
        monkeypatch.setattr(object_client, "client", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_batch, "encode", lambda _: b"some")
        patch.setattr(change_batch, "decode", lambda blob: blob)
        halves.save(packet, 0, "stream")
        assert halves.load(0, "stream") == b"some"
    halves.remove(0, "stream")
    assert halves.load(0, "stream") is None


# -- batches -----------------------------------------------------------------------------------------


def merge_shop(far, engine, *, batch=0):
    """One batch of the shop's tables by one task; the outcomes."""
    broker = Broker()
    for table in (ORDERS, ITEMS):
        value = event("c", 100 * (batch + 1), {"id": 0, "v": f"b{batch}"}, table=table)
        broker.put(f"shop.{table}", 0, b'{"id":0}', value)
    decoded = pa.Table.from_batches(tasks.decode(broker.read({}, broker.ends()), PLAN))
    (rows,) = decoded.drop_columns("shard").combine_chunks().to_batches()
    plan = LakePlan(
        "q", batch, "stream",
        lambda table: TablePlan(f"s3://lake/{table}", engine=engine, key=("id",)),
        options={**far.options, **SOON},
    )  # fmt: skip
    (result,) = tasks.merge([rows], plan)
    blobs = [row["blob"] for row in result.to_pylist() if row["kind"] == tasks.OUTCOME]
    return [msgspec.msgpack.decode(blob, type=TableOutcome) for blob in blobs]


def values(far, table: str) -> dict[int, str]:
    found = pa.table(DeltaTable(f"s3://lake/{table}", storage_options=far.options).scan())
    return {row["id"]: row["v"] for row in found.to_pylist()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sick", [ITEMS, ORDERS])
@pytest.mark.sampled(1)
def test_a_table_that_is_refused_is_alone(far, engine, sick):
    merge_shop(far, engine)
    far.refuse(f"{sick}/_delta_log", 403)
    outcomes = {o.table: o for o in merge_shop(far, engine, batch=1)}
    well = ITEMS if sick == ORDERS else ORDERS
    assert (outcomes[sick].code, outcomes[sick].retried) == ("lake-forbidden", True)
    assert (outcomes[well].code, values(far, well)) == ("", {0: "b1"})
    far.refuse("", 0)
    assert values(far, sick) == {0: "b0"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_that_was_made_anew_takes_the_place_of_the_old_one(far, engine):
    more = {"storage_options": far.options}
    merges = {TASK_MERGE: delta_rs, DELETION_VECTORS: deletion_vectors}[engine]
    for address in (ADDRESS, rebuild_path(ADDRESS, "rebuild-a-4")):
        delta_rs.ensure(address, table_schema(COLUMNS), key=["id"], table="public.t", **more)
        merged(merges, address, numbered(range(3), 1, 1), 1, **more)
    gone = [delete(of("1"), at(9))]
    merged(merges, rebuild_path(ADDRESS, "rebuild-a-4"), [*numbered([2], 2, 7), *gone], 2, **more)
    for _ in range(2):
        done = rebuild.replace(ADDRESS, "rebuild-a-4", storage_options=far.options)
        assert done is not None
        assert rows(ADDRESS, far.options) == {"0": 1, "2": 7}
    left = object_client.client(ADDRESS, far.options)
    assert left.listing("_lakemark/rebuild-a-4/_delta_log")
    far.requests()
    for _ in range(2):
        rebuild.discard(ADDRESS, "rebuild-a-4", storage_options=far.options)
        assert not left.listing("_lakemark/rebuild-a-4/_delta_log")
        assert not left.listing("_lakemark/rebuild-a-4")
    assert rows(ADDRESS, far.options) == {"0": 1, "2": 7}
