"""Records for an output topic in the form that the topic has, where it is not the connector's.

Pure but for what the converter of the way out asks: a registry of schemas.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lakemark.converters.converter import Converter, Departing
from lakemark.model.decoding import Side
from lakemark.model.events import Learnt
from lakemark.sink.output.output_records import SCHEMA, Message


@dataclass(frozen=True, slots=True)
class Conversion:
    """The way of one table's records from the form that they have to that of its topic.

    Attributes:
        table: id of the table.
        topic: its output topic.
        reader: the converter of the form that they have.
        writer: that of the topic; None where it is the same.
        converts: see `Departing`.
    """

    table: str
    topic: str
    reader: Converter
    writer: Converter | None
    converts: bool = True

    def __call__(
        self, messages: Sequence[Message], learnt_of: Callable[[Message], Learnt]
    ) -> list[Message]:
        """Return the messages as the topic has them, in their order.

        Args:
            messages: in the reader's form.
            learnt_of: what is known of the form of one, see `Converter.described`.

        Raises:
            TableError: one has no such form, or its schema is refused.
            DependencyError: whoever must be asked is away.
        """
        writer = self.writer
        if writer is None:
            return [*messages]
        alike: dict[int, tuple[Learnt, list[int]]] = {}
        for at, message in enumerate(messages):
            learnt = learnt_of(message)
            alike.setdefault(id(learnt), (learnt, []))[1].append(at)
        out = [*messages]
        for learnt, places in alike.values():
            some = self._all(writer, messages, places, learnt)
            for at, changed in zip(places, some, strict=True):
                out[at] = changed
        return out

    def _all(
        self,
        writer: Converter,
        messages: Sequence[Message],
        places: Sequence[int],
        learnt: Learnt,
    ) -> Iterable[Message]:
        some = [messages[at] for at in places]
        headers = [message.headers for message in some]

        def issued(side: Side, raws: Sequence[bytes | None]) -> list[bytes | None]:
            reader, converts = self.reader, self.converts
            return writer.issued(
                Departing(side, self.topic, self.table, reader, learnt, raws, headers, converts)
            )

        keys = issued("key", [message.key for message in some])
        values = issued("value", [message.value for message in some])
        for message, key, value in zip(some, keys, values, strict=True):
            if (key, value) == (message.key, message.value):
                yield message
                continue
            void = self.reader.read_headers
            left = [header for header in message.headers if header[0] not in void]
            if value is not None and writer.schema_id(value, left) is None:
                left += self._schema_of(message)
            yield message._replace(key=key or b"", value=value, headers=left)

    def _schema_of(self, message: Message) -> list[tuple[str, str | bytes | None]]:
        """Return the header that names the schema of a value, whose new form does not."""
        number = message.value and self.reader.schema_id(message.value, message.headers)
        return [] if number is None else [(SCHEMA, str(number).encode())]
