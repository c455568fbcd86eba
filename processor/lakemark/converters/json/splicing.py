"""Values of some columns put into a raw change event, every other byte as it was.

For unchanged TOAST columns whose values have become known: the event passes on as the connector
wrote it, with the placeholder's span in ``after`` (or ``before``) replaced by the JSON text of the
value. Members are found by walking the JSON, never by searching for the placeholder: its text may
be the value of another column, or part of one.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
# An object or an array that holds no other.
_FLAT: Final = rb'[{\[](?:[^{}\[\]"]++|%b)*+[\]}]' % _TEXT
# A name, and a value; of a value that holds objects or arrays only the place where it begins.
_MEMBER: Final = re.compile(
    rb"(%b)[ \t\r\n]*+:[ \t\r\n]*+(%b|[-+.0-9A-Za-z]++|%b|(?=[\[{]))" % (_TEXT, _TEXT, _FLAT),
    re.DOTALL,
)
_FOLLOWING: Final = re.compile(rb"[ \t\r\n]*+([,}])[ \t\r\n]*+")
_NESTING: Final = re.compile(_TEXT + rb"|[\[{]|[\]}]", re.DOTALL)


class Member(NamedTuple):
    """One member of a JSON object: its name, and where its value begins and ends."""

    name: str
    start: int
    end: int


def spliced(
    value: bytes,
    *,
    after: Mapping[str, bytes] | None = None,
    before: Mapping[str, bytes] | None = None,
) -> bytes:
    """A change event with some columns' values replaced, in plain or wrapped form.

    Args:
        value: the record's value, JSON as `json.envelope` accepts it.
        after: per column the JSON text of its value in ``after``, see `Rendering.fragments`.
        before: the same for ``before``.

    Raises:
        ValueError: this is no change event, or an image is null or lacks one of the columns.
    """
    envelope = _envelope(value)
    places: list[tuple[Member, bytes]] = []
    for image, columns in (("after", after), ("before", before)):
        if columns:
            places += _places(value, image, envelope.get(image), columns)
    pieces, at = [], 0
    for place, text in sorted(places, key=lambda found: found[0].start):
        pieces += [value[at : place.start], text]
        at = place.end
    return b"".join((*pieces, value[at:]))


def _places(
    value: bytes, image: str, where: Member | None, columns: Mapping[str, bytes]
) -> list[tuple[Member, bytes]]:
    if where is None or value[where.start : where.start + 1] != b"{":
        raise ValueError(f"the event has no {image} image to put values into")
    found = members(value, where.start)
    missing = [name for name in columns if name not in found]
    if missing:
        raise ValueError(f"the {image} image lacks {', '.join(map(repr, missing))}")
    return [(found[name], text) for name, text in columns.items()]


def _envelope(value: bytes) -> dict[str, Member]:
    """The members of the envelope: within the schema wrapper, if there is one."""
    outer = members(value, _skip(value, 0))
    wrapped = outer.keys() >= {"schema", "payload"}
    return members(value, outer["payload"].start) if wrapped else outer


def members(data: bytes, at: int) -> dict[str, Member]:
    """The members of the JSON object that begins at `at`, in order; of equal names the last.

    Raises:
        ValueError: there is no JSON object.
    """
    return {member.name: member for member in _walk(data, at)}


def _walk(data: bytes, at: int) -> Iterator[Member]:
    """Every member in turn; one match a member, but for what is nested."""
    at = _expect(data, at, b"{")
    if data[at : at + 1] == b"}":
        return
    while True:
        found = _MEMBER.match(data, at)
        if found is None:
            raise ValueError(f"byte {at} begins no member of a JSON object")
        name, value = found.span(1), found.end(2)
        start, end = found.start(2), value if value > found.start(2) else _nested_end(data, value)
        yield Member(msgspec.json.decode(data[slice(*name)], type=str), start, end)
        following = _FOLLOWING.match(data, end)
        if following is None:
            raise ValueError(f"byte {end} ends no member of a JSON object")
        if following[1] == b"}":
            return
        at = following.end()


def _nested_end(data: bytes, at: int) -> int:
    depth = 0
    for found in _NESTING.finditer(data, at):
        mark = data[found.start()]
        depth += (mark in b"{[") - (mark in b"}]")
        if depth == 0:
            return found.end()
    raise ValueError("the JSON ends within a value")


def _expect(data: bytes, at: int, mark: bytes) -> int:
    if data[at : at + 1] != mark:
        raise ValueError(f"byte {at} is not {mark.decode()!r} as in a JSON object")
    return _skip(data, at + 1)


def _skip(data: bytes, at: int) -> int:
    found = _SPACE.match(data, at)
    return found.end() if found else at
