"""Sets of characters as ranges of code points: Java's classes, and how RE2 writes a set."""

from typing import Final

Ranges = list[tuple[int, int]]
"""Lowest and highest code points, in any order; they may overlap."""

LAST: Final = 0x10FFFF
ENDS_OF_LINES: Final = [(10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029)]
CLASSES: Final[dict[str, Ranges]] = {
    "d": [(48, 57)],
    "s": [(9, 13), (32, 32)],
    "w": [(48, 57), (65, 90), (95, 95), (97, 122)],
    "v": [(10, 13), (0x85, 0x85), (0x2028, 0x2029)],
    "h": [(9, 9), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200A),
          (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)],
}  # fmt: skip
POSIX: Final[dict[str, Ranges]] = {
    "Lower": [(97, 122)],
    "Upper": [(65, 90)],
    "ASCII": [(0, 127)],
    "Alpha": [(65, 90), (97, 122)],
    "Digit": [(48, 57)],
    "Alnum": [(48, 57), (65, 90), (97, 122)],
    "Punct": [(33, 47), (58, 64), (91, 96), (123, 126)],
    "Graph": [(33, 126)],
    "Print": [(32, 126)],
    "Blank": [(9, 9), (32, 32)],
    "Cntrl": [(0, 31), (127, 127)],
    "XDigit": [(48, 57), (65, 70), (97, 102)],
    "Space": [(9, 13), (32, 32)],
}


def _united(ranges: Ranges) -> Ranges:
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def all_but(ranges: Ranges) -> Ranges:
    """Return every other character."""
    found, at = [], 0
    for low, high in _united(ranges):
        if at < low:
            found.append((at, low - 1))
        at = high + 1
    return [*found, (at, LAST)] if at <= LAST else found


def _common(one: Ranges, other: Ranges) -> Ranges:
    return all_but([*all_but(one), *all_but(other)])


def in_both_cases(ranges: Ranges) -> Ranges:
    """Return the same with the ASCII letters' other case."""
    found = list(ranges)
    for low, high in ranges:
        for first, last, distance in ((65, 90, 32), (97, 122, -32)):
            if low <= last and high >= first:
                found.append((max(low, first) + distance, min(high, last) + distance))
    return found


def _char(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"


def narrowed(found: Ranges | None, part: Ranges) -> Ranges:
    """Return what of a class is left by the next part of an intersection; an empty one is none."""
    return part if found is None else _common(found, part) if part else found


def written(ranges: Ranges) -> str:
    """Return a class of RE2; one of no character matches nothing."""
    found = _united(ranges)
    if len(found) == 1 and found[0][0] == found[0][1]:
        return _char(found[0][0])
    pieces = [_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in found]
    return f"[{''.join(pieces)}]" if pieces else r"[^\x00-\x{10ffff}]"
