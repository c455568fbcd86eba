"""The pipeline's own state beside Spark's checkpoint, and what Spark wrote there itself.

Spark's checkpoint folder may be on any Hadoop file system, so it is read and written through
Hadoop's own client, in the driver. `<checkpoint>/lakemark/state/<batch>.json` is the state after a
batch; `<checkpoint>/lakemark/pipeline.json` says for which pipeline the checkpoint was made.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from lakemark import ownership, tables
from lakemark.errors import PipelineError
from lakemark.ownership import Owner
from lakemark.tables import Offsets, PipelineState

FORMAT: Final = 1
KEPT: Final = 20  # states kept: a repeated batch needs one, a person looking back some more


class Identity(msgspec.Struct):
    """What cannot change while a checkpoint is used."""

    name: str
    shards: int
    format: int = FORMAT


class Checkpoint:
    """Files under the checkpoint folder of a pipeline."""

    def __init__(self, jvm: Any, hadoop: Any, path: str) -> None:
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.hadoop.io.IOUtils
        self._bytes = jvm.java.io.ByteArrayOutputStream
        self.path = path
        self.ours = ""
        self._files = self._path_class(path).getFileSystem(hadoop)

    def claim(self, identity: Identity) -> None:
        """Makes the checkpoint this pipeline's, or finds that it is.

        Raises:
            PipelineError: it belongs to another pipeline, or was made with other shards.
            StateVersionError: a newer version of lakemark made it.
        """
        blob = self._read("lakemark/pipeline.json")
        if blob is None:
            self._write("lakemark/pipeline.json", msgspec.json.encode(identity))
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

    def load(self, batch: int) -> PipelineState:
        """The state after a batch; the empty one before the first.

        Raises:
            PipelineError: the state of an earlier batch is gone.
            StateVersionError: a newer version of lakemark wrote it.
        """
        if batch < 0:
            return PipelineState()
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
        return self.load(max(batches)) if batches else PipelineState()

    def save(self, state: PipelineState) -> None:
        """Stores the state under its batch, atomically; replaces one of the same batch."""
        self._write(_name(state.batch), tables.encode(state))
        old = self._path_class(f"{self.path}/{_name(state.batch - KEPT)}")
        if state.batch >= KEPT:
            self._files.delete(old, False)  # noqa: FBT003 - Hadoop's signature

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
        """
        owner = self.owner()
        if owner is None or owner.token != self.ours:
            raise ownership.superseded(owner)

    def topics(self) -> dict[str, str]:
        """Kafka's ids of the change topics as they were when they were read."""
        blob = self._read("lakemark/topics.json")
        return msgspec.json.decode(blob, type=dict[str, str]) if blob else {}

    def note_topics(self, ids: Mapping[str, str]) -> None:
        """Remembers the topics' ids."""
        self._write("lakemark/topics.json", msgspec.json.encode(ids))

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

    def amend(
        self,
        change: Callable[[PipelineState], object],
        topics: Mapping[str, Mapping[int, int]],
        *,
        own: Collection[str],
    ) -> None:
        """Lets the query go on at these offsets of some topics; only while it is stopped.

        A batch that was planned but not committed has nothing of them then. Can be repeated.

        Args:
            change: makes the same of the state after a batch.
            topics: where they go on; one without offsets is read no more.
            own: lakemark's own topics.
        """
        planned, committed = self._batches("offsets"), self._batches("commits")
        for batch in [b for b in planned if b >= max(committed, default=0)]:
            before = self._read(f"offsets/{batch}") or b""
            self._write(f"offsets/{batch}", amended(before, topics, own=own))
        states = self._batches("lakemark/state", suffix=".json")
        for batch in [b for b in states if b >= max(committed, default=0)]:
            state = self.load(batch)
            change(state)
            self._write(_name(batch), tables.encode(state))

    def _batches(self, folder: str, *, suffix: str = "") -> list[int]:
        path = self._path_class(f"{self.path}/{folder}")
        if not self._files.exists(path):
            return []
        names = [str(s.getPath().getName()) for s in self._files.listStatus(path)]
        found = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        return sorted(int(name) for name in found if name.isdigit())

    def _read(self, name: str) -> bytes | None:
        path = self._path_class(f"{self.path}/{name}")
        if not self._files.exists(path):
            return None
        source, sink = self._files.open(path), self._bytes()
        self._io.copyBytes(source, sink, 65536, True)  # noqa: FBT003
        return bytes(sink.toByteArray())

    def _write(self, name: str, blob: bytes) -> None:
        path = self._path_class(f"{self.path}/{name}")
        draft = self._path_class(f"{self.path}/{name}.draft")
        out = self._files.create(draft, True)  # noqa: FBT003
        try:
            out.write(bytearray(blob))
            out.hsync()
        finally:
            out.close()
        if self._files.exists(path):
            self._files.delete(path, False)  # noqa: FBT003
        if not self._files.rename(draft, path):
            raise PipelineError(
                f"{path} could not be put in place",
                code="checkpoint-unwritable",
                hint="check the rights on the checkpoint folder",
            )


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
