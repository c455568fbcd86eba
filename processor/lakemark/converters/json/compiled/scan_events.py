"""Plain change events, compiled: where their parts are, and which one of each key is the newest.

What is read is a part of what `json.envelope` reads, and everything that is read is what that would
say: events c, u and d of one table, each of their fields once and of its type, with a position of
one of the `FORMS`. Whatever else comes makes the functions say so (-1), and the records go the
general way. See `scan_json`.
"""

from typing import Any, Final

import numpy as np

from lakemark.converters.compiler import Bytes, Offsets, Whole, compiled
from lakemark.converters.json.compiled.scan_json import (
    CLOSE,
    COMMA,
    OPEN,
    POINT,
    QUOTE,
    SMALL_N,
    bare,
    differ,
    digits,
    equals,
    literal,
    name,
    named,
    stands,
    value,
    whole,
)

FIELDS: Final = 6
"""Of the source block that must be the same in all events: see `_source`."""
NUMBERS: Final = 3
"""Of a position, at most."""
STAMP: Final = NUMBERS + 2
"""Numbers of an event: of its position, the time, the transaction's: see `events`."""
ORIGIN: Final = FIELDS + 1
"""The place in `who` of what stands before the transaction's number in its name."""
FORMS: Final = (("sequence",), ("file", "pos", "total_order"))
"""What positions are read from, see `PositionRules.compiled`: the two numbers of a sequence, with a
last commit; the number of a file, a place in it, and an order in the transaction that begins with
1, which it is for all where nobody tells it."""

_BEFORE, _AFTER, _BLOCK, _OP = map(named, (b"before", b"after", b"source", b"op"))
_CONNECTOR, _NAME, _SNAPSHOT = map(named, (b"connector", b"name", b"snapshot"))
_DB, _SCHEMA, _TABLE = map(named, (b"db", b"schema", b"table"))
_SEQUENCE, _TS_US, _TS_MS, _LSN = map(named, (b"sequence", b"ts_us", b"ts_ms", b"lsn"))
_FILE, _POS, _GTID = map(named, (b"file", b"pos", b"gtid"))
_TRANSACTION, _TOTAL_ORDER = map(named, (b"transaction", b"total_order"))
_FIRST = named(b'"[\\"')  # of a sequence: "[\"26749936\",\"26750304\"]"
_BETWEEN = named(b'\\",\\"')
_LAST = named(b'\\"]"')
_C, _U, _D = map(ord, "cud")
_OF_SEQUENCE, _OF_PLACE = range(2)  # the forms
_OF_SNAPSHOT = 2  # the field
_EVERY = 0b10101111  # fields of a source block that each has
_WITH_SEQUENCE = 0b1010000  # and these, the schema being one of them
_WITH_PLACE = 0b110000000000
_FILE_DIGITS = 10
_GTID_FIELD = 12
_NUMBER = NUMBERS + 1  # the place in a stamp
_DIVIDES = (ord(":"), ord("-"))
_BOTH = 0b1100  # of an event: source and op
_WIDE = 2  # slots of the hash table for each event, at least
_PATIENCE = 8  # looks into it, and bytes compared, for each byte and each slot


@compiled
def _field(data: Bytes, at: int, size: int) -> int:
    """The number of a source block's field, -1 for those that do not matter."""
    found = -1
    if equals(data, at, size, _CONNECTOR):
        found = 0
    elif equals(data, at, size, _NAME):
        found = 1
    elif equals(data, at, size, _SNAPSHOT):
        found = 2
    elif equals(data, at, size, _DB):
        found = 3
    elif equals(data, at, size, _SCHEMA):
        found = 4
    elif equals(data, at, size, _TABLE):
        found = 5
    elif equals(data, at, size, _SEQUENCE):
        found = 6
    elif equals(data, at, size, _TS_US):
        found = 7
    elif equals(data, at, size, _TS_MS):
        found = 8
    elif equals(data, at, size, _LSN):
        found = 9
    elif equals(data, at, size, _FILE):
        found = 10
    elif equals(data, at, size, _POS):
        found = 11
    elif equals(data, at, size, _GTID):
        found = 12
    return found


@compiled
def _sequence(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Last commit, own LSN, and past them."""
    if not stands(data, at, end, _FIRST):
        return 0, 0, -1
    major, at = digits(data, at + _FIRST.size, end)
    if at < 0 or not stands(data, at, end, _BETWEEN):
        return 0, 0, -1
    minor, at = digits(data, at + _BETWEEN.size, end)
    if at < 0 or not stands(data, at, end, _LAST):
        return 0, 0, -1
    return major, minor, at + _LAST.size


@compiled
def _file(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """The number at the end of a file's name, and past its closing quote."""
    past = bare(data, at + 1, end) if data[at] == QUOTE else -1
    if past < 0:
        return np.int64(0), -1
    begin = past
    while begin > at + 1 and data[begin - 1] != POINT:
        begin -= 1
    if begin <= at + 1 or past - begin > _FILE_DIGITS:
        return np.int64(0), -1
    number, came = digits(data, begin, past)
    return number, past + 1 if came == past else -1


@compiled
def _gtid(data: Bytes, at: int, end: int, event: int, who: Whole) -> tuple[Any, int]:
    """The number of a transaction of the same origin as event 0's, -1 for null; and past it."""
    none = np.int64(-1)
    if data[at] == SMALL_N:
        return none, -1 if event and who[ORIGIN, 1] else literal(data, at, end)
    past = bare(data, at + 1, end) if data[at] == QUOTE else -1
    if past < 0:
        return none, -1
    begin = past
    while begin > at + 1 and data[begin - 1] != _DIVIDES[0] and data[begin - 1] != _DIVIDES[1]:
        begin -= 1
    size = begin - at - 1
    if size <= 0:
        return none, -1
    if event == 0:
        who[ORIGIN, 0], who[ORIGIN, 1] = at + 1, size
    elif not equals(data, at + 1, size, data[who[ORIGIN, 0] : who[ORIGIN, 0] + who[ORIGIN, 1]]):
        return none, -1
    number, came = digits(data, begin, past)
    return number, past + 1 if came == past else -1


@compiled
def _order(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """The order in the transaction whose block begins at `at`, from 1, and past the block."""
    order = np.int64(1)
    if data[at] == SMALL_N:
        return order, literal(data, at, end)
    if data[at] != OPEN:
        return order, -1
    at += 1
    seen = False
    while True:
        begin, size = name(data, at, end)
        if size < 0:
            return order, -1
        at = begin + size + 2
        if equals(data, begin, size, _TOTAL_ORDER):
            if seen or data[at] == SMALL_N:
                return order, -1
            seen = True
            number, at = whole(data, at, end)
            if number < 0:
                return order, -1
            order = number + 1
        else:
            at = value(data, at, end)
        if at < 0 or at >= end:
            return order, -1
        at += 1
        if data[at - 1] == CLOSE:
            return order, at
        if data[at - 1] != COMMA:
            return order, -1


@compiled
def _source(data: Bytes, at: int, end: int, event: int, who: Whole, found: Whole) -> int:
    """Past the source block whose brace is before `at`.

    Args:
        data, at, end: where it is.
        event: number of the event.
        who: begin and size of connector, name, snapshot, db, schema and table in event 0, which
            all others must have too, the form of its position, and what its transaction's name
            begins with, likewise; made by event 0. A snapshot that is null, as converters write its
            default, has the size 0.
        found: gets the numbers of the position but its order, the time in microseconds, and the
            transaction's number.
    """
    seen = 0
    while True:
        begin, size = name(data, at, end)
        if size < 0:
            return -1
        at = begin + size + 2
        field = _field(data, begin, size)
        if field >= 0:
            if seen >> field & 1:
                return -1
            seen |= 1 << field
        if field < 0:
            at = value(data, at, end)
        elif field == _OF_SNAPSHOT and data[at] == SMALL_N:
            at = literal(data, at, end)
            if event and who[field, 0]:
                return -1
        elif field < FIELDS:
            if data[at] != QUOTE or (event and not who[field, 0] and field == _OF_SNAPSHOT):
                return -1
            begin = at + 1
            at = bare(data, begin, end)
            if at < 0:
                return -1
            if event == 0:
                who[field, 0], who[field, 1] = begin, at - begin
            elif not equals(
                data, begin, at - begin, data[who[field, 0] : who[field, 0] + who[field, 1]]
            ):
                return -1
            at += 1
        elif field == FIELDS and data[at] == SMALL_N:
            at = literal(data, at, end)
            seen ^= 1 << FIELDS
        elif field == FIELDS:
            found[0], found[1], at = _sequence(data, at, end)
        elif field == FIELDS + 4:
            found[0], at = _file(data, at, end)
        elif field == _GTID_FIELD:
            found[_NUMBER], at = _gtid(data, at, end, event, who)
        else:
            number, at = whole(data, at, end)
            if field == FIELDS + 1:
                found[NUMBERS] = number
            elif field == FIELDS + 5:
                found[1] = number
                if number < 0:
                    return -1
        if at < 0 or at >= end:
            return -1
        at += 1
        if data[at - 1] == CLOSE:
            break
        if data[at - 1] != COMMA:
            return -1
    if seen & _EVERY != _EVERY:
        return -1
    form = -1
    if seen & _WITH_SEQUENCE == _WITH_SEQUENCE and not seen & _WITH_PLACE:
        form = _OF_SEQUENCE
    elif seen & _WITH_PLACE == _WITH_PLACE and not seen & _WITH_SEQUENCE:
        form = _OF_PLACE
    if event == 0:
        who[FIELDS, 0] = form
    return at if form >= 0 and form == who[FIELDS, 0] else -1


@compiled
def _is_below(now: Whole, last: Whole) -> bool:
    for i in range(NUMBERS):
        if now[i] != last[i]:
            return bool(now[i] < last[i])
    return False


@compiled
def events(
    data: Bytes,
    offsets: Offsets,
    head: Bytes,
    rows: Whole,
    op: Bytes,
    before: Whole,
    after: Whole,
    stamp: Whole,
    who: Whole,
) -> int:
    """The parts of a stretch's change events, in log order; values without a byte are none.

    Args:
        data, offsets: of an Arrow array of values, which are UTF-8.
        head: what the schema wrapper puts before each event, without which it has none.
        rows: gets the number of each event's record.
        op: gets the operation's letter.
        before, after: get the begin and the end of the images, the former -1 for null.
        stamp: gets the numbers of each position (`FORMS`), the time in microseconds, and the number
            of the transaction, -1 where it has no name.
        who: gets where fields of the first source block are, and the form, see `_source`.

    Returns:
        How many events there are; -1 where a record is not plain, or stands below another, or has
        a lower transaction or one of another origin.
    """
    count = 0
    for record in range(offsets.size - 1):
        at, end = np.int64(offsets[record]), np.int64(offsets[record + 1])
        if at == end:
            continue
        if head.size:
            if at + head.size >= end or differ(data, at, head) or data[end - 1] != CLOSE:
                return -1
            at += head.size
            end -= 1
        if at >= end or data[at] != OPEN:
            return -1
        at += 1
        before[count, 0] = after[count, 0] = -1
        stamp[count, 2] = 1
        stamp[count, _NUMBER] = -1
        seen = 0
        more = True
        while more:
            begin, size = name(data, at, end)
            if size < 0:
                return -1
            at = begin + size + 2
            field = -1
            if equals(data, begin, size, _BEFORE):
                field = 0
            elif equals(data, begin, size, _AFTER):
                field = 1
            elif equals(data, begin, size, _BLOCK):
                field = 2
            elif equals(data, begin, size, _OP):
                field = 3
            elif equals(data, begin, size, _TRANSACTION):
                field = 4
            if field >= 0:
                if seen >> field & 1:
                    return -1
                seen |= 1 << field
            begin = at
            if field == 2:
                if data[at] != OPEN:
                    return -1
                at = _source(data, at + 1, end, count, who, stamp[count])
            elif field == 3:
                if at + 2 >= end or data[at] != QUOTE or data[at + 2] != QUOTE:
                    return -1
                op[count] = data[at + 1]
                at += 3
            elif field == 4:
                stamp[count, 2], at = _order(data, at, end)
            else:
                at = value(data, at, end)
                if field >= 0 and data[begin] == OPEN:
                    image = before if field == 0 else after
                    image[count, 0], image[count, 1] = begin, at
                elif field >= 0 and data[begin] != SMALL_N:
                    return -1
            if at < 0 or at >= end or (data[at] != CLOSE and data[at] != COMMA):
                return -1
            more = data[at] == COMMA
            at += 1
        if at != end or seen & _BOTH != _BOTH:
            return -1
        if who[FIELDS, 0] == _OF_SEQUENCE:
            stamp[count, 2] = 0
        if op[count] != _C and op[count] != _U and op[count] != _D:
            return -1
        if (before if op[count] == _D else after)[count, 0] < 0:
            return -1
        if who[FIELDS, 0] == _OF_SEQUENCE and stamp[count, 1] & 1:  # of a slot's first transaction
            return -1
        if count and _is_below(stamp[count], stamp[count - 1]):
            return -1
        if count and stamp[count, _NUMBER] < stamp[count - 1, _NUMBER]:
            return -1
        rows[count] = record
        count += 1
    return count


@compiled
def newest(
    data: Bytes,
    offsets: Offsets,
    rows: Whole,
    op: Bytes,
    before: Whole,
    stamp: Whole,
    form: int,
    last: Whole,
) -> int:
    """The newest event of each key, in the order of the keys' first events.

    Args:
        data, offsets: of an Arrow array of the records' keys.
        rows, op, before, stamp: of the events, as `events` gives them.
        form: of their positions.
        last: gets the number of each key's newest event.

    Returns:
        The number of keys; -1 if one may have had two rows for a while (see `fold`), or if they
        are made so that to tell them apart takes too long.
    """
    slots = 16
    while slots < _WIDE * rows.size:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    tags = np.empty(slots, np.uint64)
    patience = _PATIENCE * (data.size + slots)
    two = np.zeros(rows.size, np.bool_)
    lone = np.zeros(rows.size, np.bool_)  # an update without the row before: never two
    count = 0
    for event in range(rows.size):
        at = offsets[rows[event]]
        size = offsets[rows[event] + 1] - at
        mixed = np.uint64(14695981039346656037)  # FNV-1a
        for i in range(size):
            mixed = (mixed ^ np.uint64(data[at + i])) * np.uint64(1099511628211)
        slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))
        while True:
            key = table[slot]
            if key < 0:
                key = table[slot] = count
                tags[slot] = mixed
                count += 1
                break
            other = rows[last[key]]
            alike = tags[slot] == mixed
            patience -= 1 + alike * size
            if patience < 0:
                return -1
            if alike and equals(data, at, size, data[offsets[other] : offsets[other + 1]]):
                one, now = stamp[last[key]], stamp[event]
                if one[0] != now[0] or one[1] != now[1] or one[2] != now[2]:
                    if op[last[key]] == _D and op[event] != _C:
                        two[key] = True
                    if op[event] == _D and form == _OF_SEQUENCE and one[0] == now[0]:
                        two[key] = True
                break
            slot = (slot + 1) & (slots - 1)
        if op[event] == _U and before[event, 0] < 0:
            lone[key] = True
        last[key] = event
    for key in range(count):
        if two[key] and not lone[key]:
            return -1
    return count
