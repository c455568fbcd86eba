"""The registry, for `lakemark doctor`: does it answer, has it what is captured, is it the same."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from lakemark.converters.avro import schema_references
from lakemark.converters.avro.check_names import COPIES, HIDDEN_NULLS, OUTPUT, REGISTRY, SUBJECT
from lakemark.converters.avro.lost_values import (
    SWITCH,
    hidden_nulls,
    keeps_nulls,
    writes_like_apicurio,
)
from lakemark.converters.avro.registry_api import MissingSchemaError, RegistryApi, api_of
from lakemark.converters.avro.registry_settings import RegistrySettings, settings_of
from lakemark.converters.avro.schema_copies import SchemaCopies
from lakemark.converters.avro.schema_source import SchemaNotFoundError, SchemaReference
from lakemark.converters.avro.subjects import SIDES, foreseen, group_of, subject_of
from lakemark.converters.converter import SchemaSubject
from lakemark.model.decoding import ConverterOptions, Side
from lakemark.model.findings import Finding, fine, warning, wrong

_COMPARED: Final = 20  # copies that are compared, the newest: a request each
_LISTED: Final = 100  # topics whose newest schemas are looked at: a request each


def examine(options: ConverterOptions, topics: Sequence[str]) -> list[Finding]:
    """Return all findings about the registry that these options name.

    Args:
        options: of the converters.
        topics: of the captured tables.

    Raises:
        ConfigError: they name none that can be used.
        DependencyError: it does not answer, or refuses us.
    """
    settings = settings_of(options)
    api = api_of(settings)
    subjects = api.subjects()
    return [
        fine(REGISTRY, settings.urls[0], f"answers, and has schemas of {len(subjects):,} subjects"),
        *_subjects(options, subjects, topics),
        *_hidden_nulls(api, options, subjects, topics),
        *_copies(api, settings),
    ]


def subjects(options: ConverterOptions, topics: Sequence[str]) -> list[SchemaSubject]:
    """Return the subjects of topics that are written, see `Converter.subjects`."""
    known = api_of(settings_of(options)).subjects()
    out = []
    for topic in topics:
        for side in SIDES:
            name, strategy = foreseen(topic, side, options)
            out.append(SchemaSubject(topic, side, name, strategy, exists=name in known))
    return out


def examine_output(
    writes: ConverterOptions, reads: ConverterOptions, topics: Mapping[str, str]
) -> list[Finding]:
    """Return whether the newest schemas of topics would be taken for those that are written.

    Args:
        writes: the options of what writes.
        reads: those of what reads.
        topics: that are written, each by the topic that its records come from.
    """
    source, target = (api_of(settings_of(options)) for options in (reads, writes))
    there, taken = source.subjects(), target.subjects()
    found: list[Finding] = []
    for like, topic in [*topics.items()][:_LISTED]:
        # A name that is a record's is not known, and the same for both.
        named = {side: foreseen(like, side, reads)[0] for side in SIDES}
        newest = {side: name for side, name in named.items() if name in there}
        tried = _newest_of(source, newest, topic, writes)
        answers = {name: target.objection(name, text) for name, text in tried if name in taken}
        refused = {name: why for name, why in answers.items() if why}
        found += [_refused(name, like, why) for name, why in refused.items()]
        if "" in answers.values() and not refused:
            found.append(fine(OUTPUT, topic, "takes the newest schemas of its change topic"))
    return found


def _newest_of(
    source: RegistryApi, newest: Mapping[Side, str], topic: str, writes: ConverterOptions
) -> Iterator[tuple[str, str]]:
    """Yield the newest schemas of keys and values, each with the subject that would get it.

    Args:
        source: has them.
        newest: their subjects there.
        topic: that is written.
        writes: the options of what writes.
    """
    for side, name in newest.items():
        try:
            text = source.newest(name).text
            schema = schema_references.parsed(text)
        except (SchemaNotFoundError, ValueError):
            continue  # what is no Avro is not written
        yield subject_of(topic, side, schema, writes), text


def _refused(subject: str, like: str, why: str) -> Finding:
    return wrong(
        OUTPUT,
        subject,
        f"the registry does not take the newest schema of {like} ({why}): the table stops with"
        " output-schema-refused at its next record",
        f"set another compatibility for {subject} in the registry, or undo the change of the table",
    )


def _expected(topic: str, options: ConverterOptions) -> str:
    """Return the subject that a topic's values have by the converter's strategy and group."""
    return subject_of(topic, "value", {"name": "Envelope", "namespace": topic}, options)


def _found(topic: str, options: ConverterOptions, subjects: frozenset[str]) -> str | None:
    """Return the subject of a topic's values; None where there is none.

    What only the worker says of strategies nobody knows: the usual ones are looked for, too.
    """
    group = group_of("value", options)
    names = (_expected(topic, options), f"{group}{topic}-value", f"{group}{topic}")
    return next((name for name in names if name in subjects), None)


def _subjects(
    options: ConverterOptions, subjects: frozenset[str], topics: Sequence[str]
) -> Iterator[Finding]:
    for topic in topics:
        if _found(topic, options, subjects) is not None:
            yield fine(SUBJECT, topic, "has schemas")
            continue
        yield warning(
            SUBJECT,
            topic,
            f"there is no {_expected(topic, options)}: nothing was written there yet, the connector"
            " names its subjects otherwise, or writes to another registry",
            "compare the connector's converter settings with source.converter",
        )


def _hidden_nulls(
    api: RegistryApi, options: ConverterOptions, subjects: frozenset[str], topics: Sequence[str]
) -> Iterator[Finding]:
    """Name the columns whose NULL arrives as their default, by the newest schemas."""
    if keeps_nulls(options):
        return
    named = (_found(topic, options, subjects) for topic in topics[:_LISTED])
    hint = "drop the default, or make it NOT NULL"
    if not writes_like_apicurio(options):
        hint = f"set value.converter.{SWITCH}=true in the connector; or {hint}"
    for topic, subject in zip(topics, named, strict=False):
        if subject is None:
            continue
        try:
            columns = hidden_nulls(schema_references.parsed(api.newest(subject).text))
        except (SchemaNotFoundError, ValueError):
            continue  # what is no Avro has no columns of ours
        if columns:
            reason = f"NULL in {', '.join(columns)} arrives as the column's default"
            yield warning(HIDDEN_NULLS, topic, reason, hint)


def _copies(api: RegistryApi, settings: RegistrySettings) -> Iterator[Finding]:
    """Compare what is kept with what the registry says today: another one gives other schemas."""
    copies = SchemaCopies(settings.folder, settings.urls[0])
    compared, others = 0, []
    for reference in islice(copies.kept(), _COMPARED):
        kept = copies.read(reference)
        if kept is not None and _differs(api, reference, kept):
            others.append(reference)
        compared += 1
    place = str(copies.folder)
    if not others:
        yield fine(COPIES, place, f"{compared} of them are what the registry says")
        return
    names = ", ".join(f"{reference.kind} {reference.number}" for reference in others[:3])
    yield wrong(
        COPIES,
        place,
        f"the registry has other schemas under the same numbers ({names}): it was set up anew, and"
        " records are read by schemas that are not theirs",
        f"rm -r {place} where no record with an old number is unread; then take a snapshot",
    )


def _differs(api: RegistryApi, reference: SchemaReference, kept: str) -> bool:
    try:
        now = schema_references.parsed(api.schema(reference).text)
        # One that needs others is kept with them: it is not what the registry says.
        return not schema_references.undefined(now) and now != schema_references.parsed(kept)
    except MissingSchemaError:
        return False  # deleted there: the copy is all that there is
    except (SchemaNotFoundError, ValueError):
        return True
