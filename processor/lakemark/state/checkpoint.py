"""The pipeline's own state beside Spark's checkpoint, and Spark's own records there.

The folder may be on any file system that Spark can write: see `checkpoint_files`.
`<checkpoint>/lakemark/state/<batch>.json` is the state after a batch, `lakemark/first.json` the one
before the first; `lakemark/pipeline.json` names the pipeline that the checkpoint was made for.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from lakemark.errors import PipelineError
from lakemark.model.offsets import Offsets
from lakemark.state import handling, ownership, stored_form
from lakemark.state.checkpoint_files import Files
from lakemark.state.handling import Mark
from lakemark.state.ownership import Owner
from lakemark.state.tables import PipelineState

FORMAT: Final = 1
KEPT: Final = 20  # states kept: a repeated batch needs one, a person looking back some more
LOST: Final = "checkpoint-lost"
DAMAGED: Final = "checkpoint-damaged"
SPARK: Final = "spark"
LOCAL: Final = "local"
_IDENTITY: Final = "lakemark/pipeline.json"
_FIRST: Final = "lakemark/first.json"
_HANDLING: Final = "lakemark/handling.json"
_REWRITE: Final = "lakemark/rewrite.json"


class Identity(msgspec.Struct):
    """The settings that cannot change while a checkpoint is used."""

    name: str
    shards: int
    format: int = FORMAT
    runner: str = SPARK


class Checkpoint:
    """The files under the checkpoint folder of a pipeline.

    Raises (every method):
        DependencyError: `checkpoint-unavailable`: the file system refuses, or does not answer.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self.ours = ""

    def claim(self, identity: Identity) -> None:
        """Make the checkpoint this pipeline's, and end a rewrite that was interrupted.

        For the owner alone: see `require`, which comes before.
        """
        if self._read(_IDENTITY) is None:
            self._write(_IDENTITY, msgspec.json.encode(identity))
        self._finish_rewrite()

    def require(self, identity: Identity) -> None:
        """Check that the checkpoint is this pipeline's, or nobody's yet; write nothing.

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
            stored_form.decode(blob)
        if found.runner != identity.runner:
            raise PipelineError(
                f"the checkpoint {self.path} was made by the runner {found.runner!r}, not by "
                f"{identity.runner!r}: they keep what snapshots remember in different forms",
                code="checkpoint-mismatch",
                hint="run this pipeline as before, or give it a checkpoint of its own",
            )
        if found != identity:
            raise PipelineError(
                f"the checkpoint {self.path} was made for pipeline {found.name!r} with "
                f"{found.shards} shards, not for {identity.name!r} with {identity.shards}",
                code="checkpoint-mismatch",
                hint="set name and stream.shards back, or give this pipeline a checkpoint of its "
                "own",
            )

    def query_id(self) -> str:
        """Return Spark's id of the query, the first part of every app id; stable over restarts."""
        blob = self._read("metadata")
        return str(json.loads(blob)["id"]) if blob else ""

    def offsets(self, batch: int) -> list[Offsets]:
        """Return the end offsets of a planned batch, one entry per source in the query's order.

        Raises:
            PipelineError: Spark has not planned this batch.
        """
        blob = self._read(f"offsets/{batch}")
        if blob is None:
            raise PipelineError(
                f"the checkpoint {self.path} has no offsets of batch {batch}",
                code=DAMAGED,
                hint="restore the checkpoint folder, or start with a new one and snapshot again",
            )
        found = []
        for line in blob.decode().splitlines()[2:]:  # version, metadata, then a line per source
            source = json.loads(line) if line not in ("-", "") else {}
            found.append({t: {int(p): o for p, o in ps.items()} for t, ps in source.items()})
        return found

    def is_new(self) -> bool:
        """Say whether the query was never started with it."""
        planned = self._batches("offsets") or self._batches("commits")
        return not planned and self._read(_FIRST) is None

    def begin(self, state: PipelineState) -> None:
        """Store the state that the first batch begins with."""
        self._write(_FIRST, stored_form.encode(state))

    def load(self, batch: int) -> PipelineState:
        """Return the state after a batch; before the first that of `begin`, or an empty one.

        Raises:
            PipelineError: the state of an earlier batch is gone.
            StateVersionError: a newer version of lakemark wrote it.
        """
        if batch < 0:
            blob = self._read(_FIRST)
            return stored_form.decode(blob) if blob else PipelineState()
        blob = self._read(_name(batch))
        if blob is None:
            raise PipelineError(
                f"the checkpoint {self.path} has no state of batch {batch}",
                code=DAMAGED,
                hint="restore the checkpoint folder, or start with a new one and snapshot again",
            )
        return stored_form.decode(blob)

    def newest(self) -> PipelineState:
        """Return the state of the newest batch that has one."""
        batches = self._batches("lakemark/state", suffix=".json")
        return self.load(max(batches, default=-1))

    def save(self, state: PipelineState) -> None:
        """Store the state under its batch, atomically; replace one of the same batch."""
        self._write(_name(state.batch), stored_form.encode(state))
        if state.batch >= KEPT:
            self._delete(_name(state.batch - KEPT))

    def owner(self) -> Owner | None:
        """Return the process that runs the pipeline, or ran it last; None before the first."""
        return ownership.decode(self._read("lakemark/owner.json"))

    def take(self, owner: Owner) -> None:
        """Make this process the owner: any other one begins no batch any more."""
        self.ours = owner.token
        self._write("lakemark/owner.json", ownership.encode(owner))

    def check_owner(self) -> None:
        """Raise unless this process is the owner.

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
        """Return Kafka's ids of the change topics as they were when they were read."""
        blob = self._read("lakemark/topics.json")
        return msgspec.json.decode(blob, type=dict[str, str]) if blob else {}

    def note_topics(self, ids: Mapping[str, str]) -> None:
        """Store the topics' ids."""
        self._write("lakemark/topics.json", msgspec.json.encode(ids))

    def decoding(self, connector: str = "") -> dict[str, str] | None:
        """Return the settings that events were decoded by, see `encoding`; None = unknown.

        Args:
            connector: whose events, by its qualifier; empty for the only one.
        """
        blob = self._read(_own("decoding", connector))
        return msgspec.json.decode(blob, type=dict[str, str]) if blob else None

    def note_decoding(self, settings: Mapping[str, str], connector: str = "") -> None:
        """Store these settings."""
        self._write(_own("decoding", connector), msgspec.json.encode(settings))

    def written(self) -> dict[str, dict[str, str]]:
        """Return how columns' values were written in decoded events, see `encoding`."""
        blob = self._read("lakemark/columns.json")
        return msgspec.json.decode(blob, type=dict[str, dict[str, str]]) if blob else {}

    def note_written(self, columns: Mapping[str, Mapping[str, str]]) -> None:
        """Store how columns' values are written."""
        self._write("lakemark/columns.json", msgspec.json.encode(columns))

    def catalog(self, connector: str = "") -> bytes | None:
        """Return the newest look's facts, see `catalog_watch`; None = there was no look yet.

        Args:
            connector: whose catalog, by its qualifier; empty for the only one's.
        """
        return self._read(_own("catalog", connector))

    def note_catalog(self, seen: bytes, connector: str = "") -> None:
        """Store the facts of a look at the catalog instead."""
        self._write(_own("catalog", connector), seen)

    def definitions(self, connector: str = "") -> bytes | None:
        """Return the definitions of a connector's tables, see `table_history`; None = unknown.

        Args:
            connector: whose tables, by its qualifier; empty for the only one's.
        """
        return self._read(_own("definitions", connector))

    def note_definitions(self, found: bytes, connector: str = "") -> None:
        """Store the definitions of a connector's tables instead."""
        self._write(_own("definitions", connector), found)

    def handling(self) -> Mark | None:
        """Return the mark of commands being handled when a process ended, see `handling`."""
        return handling.decode(self._read(_HANDLING))

    def note_handling(self, mark: Mark | None) -> None:
        """Store the mark of commands that are being handled; None = none are."""
        if mark is None:
            self._delete(_HANDLING)
        else:
            self._write(_HANDLING, handling.encode(mark))

    def goes_on(self) -> tuple[PipelineState, Offsets]:
        """Return state and end offsets of the newest committed batch: where Spark goes on.

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
        """Return where the query's first batch begins, if Spark has planned one."""
        return {t: offsets for source in self.begun_by_source() for t, offsets in source.items()}

    def begun_by_source(self) -> list[Offsets]:
        """Return the same, one entry per source in the query's order."""
        blobs = [self._read(f"sources/{source}/0") or b"" for source in self._batches("sources")]
        return [
            msgspec.json.decode(blob.partition(b"\n")[2] or b"{}", type=Offsets) for blob in blobs
        ]

    def topics_ahead(self) -> set[str]:
        """Return the topics that the query goes on with, lakemark's own among them.

        Those of a batch that was planned and not committed, too, and before the first commit those
        that the query begins with.
        """
        ahead = {topic for batch in self._ahead() for one in self.offsets(batch) for topic in one}
        return ahead if self._batches("commits") else ahead.union(self.begun())

    def _ahead(self) -> list[int]:
        """Return the newest committed batch, and those that are planned after it."""
        committed = max(self._batches("commits"), default=0)
        return [batch for batch in self._batches("offsets") if batch >= committed]

    def amend(
        self,
        change: Callable[[PipelineState], object],
        topics: Mapping[str, Mapping[int, int]],
        *,
        own: Collection[str],
    ) -> None:
        """Let the query go on at these offsets of some topics; only while it is stopped.

        A batch that was planned but not committed has nothing of these topics then, and before the
        first commit the query begins so. Can be repeated: `claim` ends what a crash interrupts.

        Args:
            change: makes the same change in the state after a batch.
            topics: where they go on; one without offsets is read no more.
            own: lakemark's own topics.
        """
        files: dict[str, bytes] = {}
        committed = self._batches("commits")
        for batch in self._ahead():
            name = f"offsets/{batch}"
            files[name] = amended(self._read(name) or b"", topics, own=own)
        if not committed:
            files |= self._begun_amended(topics, own)
        states = self._batches("lakemark/state", suffix=".json")
        for batch in [b for b in states if b >= max(committed, default=0)]:
            state = self.load(batch)
            change(state)
            files[_name(batch)] = stored_form.encode(state)
        if not committed and self._read(_FIRST) is not None:
            state = self.load(-1)
            change(state)
            files[_FIRST] = stored_form.encode(state)
        self._rewrite(files)

    def _begun_amended(
        self, topics: Mapping[str, Mapping[int, int]], own: Collection[str]
    ) -> dict[str, bytes]:
        """Return the files that say where each source begins, with other offsets of some topics."""
        names = [f"sources/{source}/0" for source in self._batches("sources")]
        blobs = [(self._read(name) or b"").partition(b"\n") for name in names]
        lines = [offsets or b"{}" for _, _, offsets in blobs]
        after = amended(b"\n".join([b"v1", b"{}", *lines]), topics, own=own).splitlines()[2:]
        heads = [head + newline for head, newline, _ in blobs]  # Spark's mark of the form
        return {n: head + line for n, head, line in zip(names, heads, after, strict=True) if head}

    # -- of a query without Spark: the same files, in the same forms ------------------------------

    def note_query(self, query: str, begun: Sequence[Offsets]) -> None:
        """Note a new query's id, and where each of its sources begins."""
        for number, offsets in enumerate(begun):
            self._write(f"sources/{number}/0", b"0v1\n" + msgspec.json.encode(offsets))
        self._write("metadata", msgspec.json.encode({"id": query}))

    def note_planned(self, batch: int, ends: Sequence[Offsets]) -> None:
        """Note the end offsets of a batch, one entry per source: they are final."""
        lines = ["v1", "{}", *(msgspec.json.encode(source).decode() for source in ends)]
        self._write(f"offsets/{batch}", "\n".join(lines).encode())
        self._delete(f"offsets/{batch - KEPT}")

    def note_committed(self, batch: int) -> None:
        """Note that a batch is done."""
        self._write(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self._delete(f"commits/{batch - KEPT}")

    def newest_planned(self) -> int:
        """Return the newest batch that is planned, -1 if there is none."""
        return max(self._batches("offsets"), default=-1)

    def newest_committed(self) -> int:
        """Return the newest batch that is done, -1 if there is none."""
        return max(self._batches("commits"), default=-1)

    def shards(self, batch: int) -> dict[int, bytes]:
        """Return the shards' states after a batch, in the form of `reconcile.state`."""
        blob = self._read(f"lakemark/shards/{batch}") if batch >= 0 else None
        return msgspec.msgpack.decode(blob, type=dict[int, bytes]) if blob else {}

    def note_shards(self, batch: int, states: Mapping[int, bytes]) -> None:
        """Store the shards' states, for the batch after."""
        if states:
            self._write(f"lakemark/shards/{batch}", msgspec.msgpack.encode(states))
        else:
            self._delete(f"lakemark/shards/{batch}")
        self._delete(f"lakemark/shards/{batch - KEPT}")

    # -- files ----------------------------------------------------------------------------------

    def _rewrite(self, files: Mapping[str, bytes]) -> None:
        """Replace all of these files or none: one that was begun is ended, here or by `claim`."""
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
        names = self._files.names(folder)
        found = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        return sorted(int(name) for name in found if name.isdigit())

    def _read(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is none; `_write` says in which files to look."""
        for place in (name, _next(name), name):
            blob = self._files.read(place)
            if blob is not None:
                return blob
        return None

    def _write(self, name: str, blob: bytes) -> None:
        """Put a file in place: a reader finds the old one or the new one, both whole.

        The file system need only rename to a name that is free: not all of them replace a file in
        one step.

        1. The draft is written.
        2. Where there is a file of that name, the draft becomes `<name>.next`, and the old file is
           deleted: a reader that does not find it takes that one.
        3. The whole file gets the name.
        """
        draft, following = f"{name}.draft", _next(name)
        self._files.create(draft, blob)
        if self._files.exists(name):
            self._files.delete(following)
            self._rename(draft, following)
            self._files.delete(name)
            draft = following
        self._rename(draft, name)

    def _rename(self, name: str, to: str) -> None:
        if not self._files.rename(name, to):
            raise PipelineError(
                f"{self.path}/{to} could not be put in place",
                code="checkpoint-unwritable",
                hint="check the rights on the checkpoint folder",
            )

    def _delete(self, name: str) -> None:
        for place in (_next(name), name):  # in this order: see `_read`
            self._files.delete(place)


def _own(what: str, connector: str) -> str:
    """Return the file of something that each of several connectors has."""
    return f"lakemark/connectors/{connector}/{what}.json" if connector else f"lakemark/{what}.json"


def _next(name: str) -> str:
    return f"{name}.next"


def amended(blob: bytes, topics: Mapping[str, Mapping[int, int]], *, own: Collection[str]) -> bytes:
    """Return Spark's record of a planned batch, with other offsets of some topics.

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
