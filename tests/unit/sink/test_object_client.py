"""Files of tables in an object store, by a client of its own: those that delta-rs means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.sink.delta import file_cache, object_client
from lakemark.sink.delta.failures import classified
from lakemark.sink.delta.file_cache import KeptFiles
from lakemark.sink.delta.object_client import NO_FILE
from lakemark.sink.delta.table_store import TableStore
from stack.object_store import serving

ADDRESS = "s3://lake/public/t"
SOON = {"max_retries": "1", "retry_timeout": "1s"}


@pytest.fixture
def far():
    with serving() as found:
        yield found


@pytest.fixture
def store(far):
    return TableStore(ADDRESS, {**far.options, **SOON})


@pytest.mark.parametrize("native", [False, True])
def test_files_are_written_read_and_deleted(far, native):
    store = TableStore(ADDRESS, far.options, native=native)
    store.write("deep/a b.bin", b"one")
    store.write("deep/a b.bin", b"another")
    assert store.read("deep/a b.bin") == b"another"
    assert [one.base_name for one in store.listing("deep")] == ["a b.bin"]
    assert store.stamp("deep/a b.bin")[0] == len(b"another")
    store.delete("deep/a b.bin")
    store.delete("deep/a b.bin")
    assert store.stamp("deep/a b.bin") == NO_FILE
    with pytest.raises(FileNotFoundError):
        store.read("deep/a b.bin")


def test_both_clients_mean_the_same_file(far):
    ours, theirs = (TableStore(ADDRESS, far.options, native=native) for native in (False, True))
    for name in ("a", "b/c", "d=1/e+f%20g.bin"):
        ours.write(name, name.encode())
        assert theirs.read(name) == name.encode()
        theirs.write(f"{name}2", b"2")
        assert ours.read(f"{name}2") == b"2"


@pytest.mark.parametrize(
    "folder", ["my%20lake/t", "a/b=1/t_2", "a/b/t/", "ä/t", "a.b/.c/t", "order~20items"]
)
def test_both_clients_mean_the_same_folder(far, folder):
    address = f"s3://lake/{folder}"
    ours, theirs = (TableStore(address, far.options, native=native) for native in (False, True))
    ours.write("a", b"1")
    assert theirs.read("a") == b"1"
    assert [one.base_name for one in ours.listing("")] == ["a"]


def test_a_stamp_tells_files_of_one_name_and_size_apart(store):
    assert store.stamp("a") == NO_FILE
    first = store.put_absent("a", b"one")
    assert first == store.stamp("a") != NO_FILE
    assert store.put_absent("a", b"two") is None
    assert store.stamp("a") == first
    assert store.put_absent("a", b"one") == first, "the very same bytes are our own"
    store.write("a", b"two")
    assert store.stamp("a") not in {first, NO_FILE}


@pytest.mark.parametrize(("status", "error"), [(403, PermissionError), (401, PermissionError), (503, OSError)])  # fmt: skip
def test_what_a_store_refuses_is_an_error_and_no_missing_file(far, store, status, error):
    store.write("a", b"one")
    far.refuse("/a$", status)
    for call in (
        lambda: store.read("a"),
        lambda: store.write("a", b"two"),
        lambda: store.stamp("a"),
        lambda: store.put_absent("a", b"two"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert not isinstance(caught.value, FileNotFoundError)
        assert "Debug" not in str(caught.value)
    far.refuse("", 0)
    assert store.read("a") == b"one"


def test_credentials_that_have_expired_are_told_as_such(far, store):
    """The answer to a request for a file's head has no body: the status alone does not say it."""
    store.write("a", b"one")
    far.refuse("/a$", 400, "ExpiredToken")
    with pytest.raises(OSError, match="ExpiredToken") as caught:
        store.stamp("a")
    assert classified(caught.value, ADDRESS).code == "lake-forbidden"


def test_tables_of_one_bucket_have_one_client():
    options = {"AWS_REGION": "eu-west-1"}
    stores = [object_client.client(f"s3://lake/public/{name}/", options) for name in "ab"]
    assert stores[0].store is stores[1].store
    assert [one.folder for one in stores] == ["public/a/", "public/b/"]
    assert object_client.client("s3://lake", options).folder == ""
    other = object_client.client("s3://lake/public/a", {"AWS_REGION": "eu-west-2"})
    assert other.store is not stores[0].store


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=40))
def test_the_files_used_last_are_kept_up_to_a_number_of_bytes(puts):
    """What an entry takes beside its file counts, too."""
    most = 20 + 2 * file_cache._ENTRY
    kept, recent = KeptFiles(most), list[tuple[str, bytes]]()
    for number, size in puts:
        name, data = str(number), bytes([number]) * size
        kept.put(("t", name), data)
        recent = [(name, data), *((n, d) for n, d in recent if n != name)]
        while sum(len(d) + file_cache._ENTRY for _, d in recent) > most:
            recent.pop()
        assert [kept.get(("t", str(n))) for n in range(6)] == [
            dict(recent).get(str(n)) for n in range(6)
        ]
        for n, _ in reversed(recent):  # the look was a use, too: as it was before
            kept.get(("t", n))


def test_a_file_larger_than_all_that_is_kept_is_not_kept():
    kept = KeptFiles(3 + file_cache._ENTRY)
    kept.put(("t", "a"), b"123")
    kept.put(("t", "b"), b"1234")
    assert (kept.get(("t", "a")), kept.get(("t", "b"))) == (b"123", None)


def test_two_names_of_one_option_and_options_of_the_client_are_no_mistake(monkeypatch):
    options = {"AWS_REGION": "one", "region": "one", "read_timeout": "7s", "randomize_addresses": "true"}  # fmt: skip
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    found = object_client.client("s3://lake/t", options).store
    assert found.config["region"] == "one"
    assert found.client_options["read_timeout"] == "7s"
    assert found.client_options["allow_http"]


def test_a_client_is_made_anew_after_an_hour(monkeypatch):
    now = [1e6]
    monkeypatch.setattr(object_client.time, "monotonic", lambda: now[0])
    first = object_client.client("s3://hourly/t", {}).store
    now[0] += 3000
    assert object_client.client("s3://hourly/t", {}).store is first
    now[0] += 3000
    assert object_client.client("s3://hourly/t", {}).store is not first
