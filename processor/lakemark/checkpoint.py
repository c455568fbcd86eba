"""The pipeline's own state beside Spark's checkpoint, and what Spark wrote there itself.

Spark's checkpoint folder may be on any Hadoop file system, so it is read and written through
Hadoop's own client, in the driver. `<checkpoint>/lakemark/state/<batch>.json` is the state after a
batch, `lakemark/first.json` the one before the first; `lakemark/pipeline.json` says for which
pipeline the checkpoint was made.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JJavaError

from lakemark import handling, ownership, tables
from lakemark.errors import DependencyError, PipelineError
from lakemark.handling import Mark
from lakemark.ownership import Owner
from lakemark.settings.masking import foreign
from lakemark.tables import Offsets, PipelineState

FORMAT: Final = 1
KEPT: Final = 20  # states kept: a repeated batch needs one, a person looking back some more
LOST: Final = "checkpoint-lost"
_IDENTITY: Final = "lakemark/pipeline.json"
_FIRST: Final = "lakemark/first.json"
_HANDLING: Final = "lakemark/handling.json"
_REWRITE: Final = "lakemark/rewrite.json"
_MISSING: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


class Identity(msgspec.Struct):
    """What cannot change while a checkpoint is used."""

    name: str
    shards: int
    format: int = FORMAT


class Checkpoint:
    """Files under the checkpoint folder of a pipeline.

    Raises (every method):
        DependencyError: `checkpoint-unavailable`: the file system does not do what it is asked.
    """

    def __init__(self, jvm: Any, hadoop: Any, path: str) -> None:
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.hadoop.io.IOUtils
        self._bytes = jvm.java.io.ByteArrayOutputStream
        self.path = path
        self.ours = ""
        with self._reached():
            self._files = self._path_class(path).getFileSystem(hadoop)

    def claim(self, identity: Identity) -> None:
        """Makes the checkpoint this pipeline's, and ends a rewrite that was interrupted.

        For the owner alone: see `require`, which comes before.
        """
        if self._read(_IDENTITY) is None:
            self._write(_IDENTITY, msgspec.json.encode(identity))
        self._finish_rewrite()

    def require(self, identity: Identity) -> None:
        """Finds that the checkpoint is this pipeline's, or nobody's yet; writes nothing.

        Raises:
            PipelineError: it belongs to another pipeline, or was made with other shards; or it is
                what is left of one that was removed.
            StateVersionError: a newer version of lakemark made it.
        """
        blob = self._read(_IDENTITY)
        if blob is None:
            if self._batches("offsets") or self._batches("commits"):
                raise self._lost("has batches, and nothing says of which pipeline: it was removed")
            return
        found = msgspec.json.decode(blob, type=Identity)
        if found.format > FORMAT:
            tables.decode(blob)
        if found != identity:
            raise PipelineError(
                f"the checkpoint {self.path} was made for pipeline {found.name!r} with "
                f"{found.shards} shards, not for {identity.name!r} with {identity.shards}",
                code="checkpoint-mismatch",
                hint="set name and stream.shards back, or give this pipeline a checkpoint of its "
                "own",
            )

    def query_id(self) -> str:
        """Spark's id of the query, the first part of every app id; stable over restarts."""
        blob = self._read("metadata")
        return str(json.loads(blob)["id"]) if blob else ""

    def offsets(self, batch: int) -> list[Offsets]:
        """End offsets of a planned batch, one entry per source in the query's order.

        Raises:
            PipelineError: Spark has not planned this batch.
        """
        blob = self._read(f"offsets/{batch}")
        if blob is None:
            raise PipelineError(
                f"the checkpoint {self.path} has no offsets of batch {batch}",
                code="checkpoint-damaged",
                hint="restore the checkpoint folder, or start with a new one and snapshot again",
            )
        found = []
        for line in blob.decode().splitlines()[2:]:  # version, metadata, then a line per source
            source = json.loads(line) if line not in ("-", "") else {}
            found.append({t: {int(p): o for p, o in ps.items()} for t, ps in source.items()})
        return found

    def is_new(self) -> bool:
        """Whether the query was never started with it."""
        planned = self._batches("offsets") or self._batches("commits")
        return not planned and self._read(_FIRST) is None

    def begin(self, state: PipelineState) -> None:
        """Stores what the first batch begins with."""
        self._write(_FIRST, tables.encode(state))

    def load(self, batch: int) -> PipelineState:
        """The state after a batch; before the first that of `begin`, or an empty one.

        Raises:
            PipelineError: the state of an earlier batch is gone.
            StateVersionError: a newer version of lakemark wrote it.
        """
        if batch < 0:
            blob = self._read(_FIRST)
            return tables.decode(blob) if blob else PipelineState()
        blob = self._read(_name(batch))
        if blob is None:
            raise PipelineError(
                f"the checkpoint {self.path} has no state of batch {batch}",
                code="checkpoint-damaged",
                hint="restore the checkpoint folder, or start with a new one and snapshot again",
            )
        return tables.decode(blob)

    def newest(self) -> PipelineState:
        """The state of the newest batch that has one."""
        batches = self._batches("lakemark/state", suffix=".json")
        return self.load(max(batches, default=-1))

    def save(self, state: PipelineState) -> None:
        """Stores the state under its batch, atomically; replaces one of the same batch."""
        self._write(_name(state.batch), tables.encode(state))
        if state.batch >= KEPT:
            self._delete(_name(state.batch - KEPT))

    def owner(self) -> Owner | None:
        """Who runs the pipeline, or ran it last."""
        return ownership.decode(self._read("lakemark/owner.json"))

    def take(self, owner: Owner) -> None:
        """Makes this process the owner: any other one begins no batch any more."""
        self.ours = owner.token
        self._write("lakemark/owner.json", ownership.encode(owner))

    def check_owner(self) -> None:
        """Nothing, as long as this process is the owner.

        Raises:
            DependencyError: `superseded`.
            PipelineError: `checkpoint-lost`: nobody is, though this process was.
        """
        owner = self.owner()
        if owner is None:
            raise self._lost("was removed or emptied while lakemark ran")
        if owner.token != self.ours:
            raise ownership.superseded(owner)

    def _lost(self, what: str) -> PipelineError:
        return PipelineError(
            f"the checkpoint {self.path} {what}",
            code=LOST,
            hint="restore the folder as it was; or empty it, start again, and snapshot all tables: "
            "`lakemark snapshot start '.*'`",
        )

    def topics(self) -> dict[str, str]:
        """Kafka's ids of the change topics as they were when they were read."""
        blob = self._read("lakemark/topics.json")
        return msgspec.json.decode(blob, type=dict[str, str]) if blob else {}

    def note_topics(self, ids: Mapping[str, str]) -> None:
        """Remembers the topics' ids."""
        self._write("lakemark/topics.json", msgspec.json.encode(ids))

    def decoding(self) -> dict[str, str] | None:
        """The connector's settings that events were decoded by, see `decoding`; None = unknown."""
        blob = self._read("lakemark/decoding.json")
        return msgspec.json.decode(blob, type=dict[str, str]) if blob else None

    def note_decoding(self, settings: Mapping[str, str]) -> None:
        """Remembers these settings."""
        self._write("lakemark/decoding.json", msgspec.json.encode(settings))

    def written(self) -> dict[str, dict[str, str]]:
        """How columns' values were written when their events were decoded, see `decoding`."""
        blob = self._read("lakemark/columns.json")
        return msgspec.json.decode(blob, type=dict[str, dict[str, str]]) if blob else {}

    def note_written(self, columns: Mapping[str, Mapping[str, str]]) -> None:
        """Remembers this."""
        self._write("lakemark/columns.json", msgspec.json.encode(columns))

    def handling(self) -> Mark | None:
        """Which commands were being handled when a process ended, see `handling`."""
        return handling.decode(self._read(_HANDLING))

    def note_handling(self, mark: Mark | None) -> None:
        """Remembers which commands are being handled; None = none are."""
        if mark is None:
            self._delete(_HANDLING)
        else:
            self._write(_HANDLING, handling.encode(mark))

    def goes_on(self) -> tuple[PipelineState, Offsets]:
        """State and end offsets of the newest batch that is committed: where Spark goes on.

        Returns:
            the state, and offsets of all topics, lakemark's own among them; before the first
            commit the newest state, if there is one, and no offsets.
        """
        committed = self._batches("commits")
        if not committed:
            return self.newest(), {}
        offsets: Offsets = {}
        for source in self.offsets(committed[-1]):
            offsets |= source
        return self.load(committed[-1]), offsets

    def begun(self) -> Offsets:
        """Where the query's first batch begins, if Spark has planned one."""
        offsets: Offsets = {}
        for source in self._batches("sources"):
            blob = self._read(f"sources/{source}/0") or b""
            offsets |= msgspec.json.decode(blob.partition(b"\n")[2] or b"{}", type=Offsets)
        return offsets

    def amend(
        self,
        change: Callable[[PipelineState], object],
        topics: Mapping[str, Mapping[int, int]],
        *,
        own: Collection[str],
    ) -> None:
        """Lets the query go on at these offsets of some topics; only while it is stopped.

        A batch that was planned but not committed has nothing of them then. Can be repeated: what
        a crash interrupts, `claim` ends.

        Args:
            change: makes the same of the state after a batch.
            topics: where they go on; one without offsets is read no more.
            own: lakemark's own topics.
        """
        files: dict[str, bytes] = {}
        planned, committed = self._batches("offsets"), self._batches("commits")
        for batch in [b for b in planned if b >= max(committed, default=0)]:
            name = f"offsets/{batch}"
            files[name] = amended(self._read(name) or b"", topics, own=own)
        states = self._batches("lakemark/state", suffix=".json")
        for batch in [b for b in states if b >= max(committed, default=0)]:
            state = self.load(batch)
            change(state)
            files[_name(batch)] = tables.encode(state)
        if not states and self._read(_FIRST) is not None:
            state = self.load(-1)
            change(state)
            files[_FIRST] = tables.encode(state)
        self._rewrite(files)

    # -- files ----------------------------------------------------------------------------------

    def _rewrite(self, files: Mapping[str, bytes]) -> None:
        """Replaces all of these or none: whatever was begun is ended, here or by `claim`."""
        self._write(_REWRITE, msgspec.json.encode({n: blob.decode() for n, blob in files.items()}))
        self._finish_rewrite()

    def _finish_rewrite(self) -> None:
        blob = self._read(_REWRITE)
        if blob is None:
            return
        for name, text in msgspec.json.decode(blob, type=dict[str, str]).items():
            self._write(name, text.encode())
        self._delete(_REWRITE)

    def _batches(self, folder: str, *, suffix: str = "") -> list[int]:
        path = self._place(folder)
        with self._reached():
            if not self._files.exists(path):
                return []
            names = [str(s.getPath().getName()) for s in self._files.listStatus(path)]
        found = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        return sorted(int(name) for name in found if name.isdigit())

    def _read(self, name: str) -> bytes | None:
        """A file's bytes, None if there is none; where it may be see `_write`."""
        for place in (name, _next(name), name):
            blob = self._content(place)
            if blob is not None:
                return blob
        return None

    def _content(self, name: str) -> bytes | None:
        with self._reached():
            try:
                source, sink = self._files.open(self._place(name)), self._bytes()
                self._io.copyBytes(source, sink, 65536, True)  # noqa: FBT003
            except Py4JJavaError as error:
                if str(error.java_exception.getClass().getName()) in _MISSING:
                    return None
                raise
            return bytes(sink.toByteArray())

    def _write(self, name: str, blob: bytes) -> None:
        """Puts a file in place: whoever reads it finds the old one or the new one, both whole.

        Of a file system no more is asked than to rename to a name that is free: not all of them
        replace a file in one step.

        1. The draft is written.
        2. Where there is a file of that name, the draft becomes `<name>.next`, and the old file is
           deleted: a reader that does not find it takes that one.
        3. What is whole gets the name.
        """
        path, draft, following = map(self._place, (name, f"{name}.draft", _next(name)))
        with self._reached():
            out = self._files.create(draft, True)  # noqa: FBT003
            try:
                out.write(bytearray(blob))
                out.hsync()
            finally:
                out.close()
            if self._files.exists(path):
                self._files.delete(following, False)  # noqa: FBT003
                self._rename(draft, following)
                self._files.delete(path, False)  # noqa: FBT003
                draft = following
            self._rename(draft, path)

    def _rename(self, path: Any, to: Any) -> None:
        if not self._files.rename(path, to):
            raise PipelineError(
                f"{to} could not be put in place",
                code="checkpoint-unwritable",
                hint="check the rights on the checkpoint folder",
            )

    def _delete(self, name: str) -> None:
        with self._reached():
            for place in (_next(name), name):  # in this order: see `_read`
                self._files.delete(self._place(place), False)  # noqa: FBT003 - Hadoop's signature

    def _place(self, name: str) -> Any:
        return self._path_class(f"{self.path}/{name}")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Whatever Java's file system throws is a reason to try again, and to say why."""
        try:
            yield
        except Py4JJavaError as error:
            reason = foreign(error.java_exception.toString()).partition("\n")[0]
            raise DependencyError(
                f"the checkpoint {self.path} cannot be used: {reason}",
                code="checkpoint-unavailable",
                hint="check its file system: is it there, has it room, may lakemark read and write",
            ) from error


def _next(name: str) -> str:
    return f"{name}.next"


def amended(blob: bytes, topics: Mapping[str, Mapping[int, int]], *, own: Collection[str]) -> bytes:
    """Spark's record of a planned batch, with other offsets of some topics.

    Args:
        blob: version, metadata, then a line for each source: its offsets by topic and partition.
        topics: the offsets; a topic without any is taken out, a change topic that is in no line is
            put into that of the change topics: the first one without own topics.
        own: lakemark's own topics.
    """
    head, lines = blob.decode().splitlines()[:2], blob.decode().splitlines()[2:]
    sources = [json.loads(line) if line not in ("-", "") else {} for line in lines]
    others = (at for at, source in enumerate(sources) if not any(t in own for t in source))
    changes = next(others, -1)
    for at, source in enumerate(sources):
        mine = [t for t in topics if t in source or (at == changes and topics[t] and t not in own)]
        for topic in mine:
            source[topic] = {str(p): offset for p, offset in topics[topic].items()}
        if mine:
            kept = {topic: partitions for topic, partitions in source.items() if partitions}
            lines[at] = json.dumps(kept, separators=(",", ":"))
    return "\n".join([*head, *lines]).encode()


def _name(batch: int) -> str:
    return f"lakemark/state/{batch}.json"
