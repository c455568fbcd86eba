"""Only the values of the named columns change in an event, whatever else it holds."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.json.splicing import members, spliced

PLACEHOLDER = "__debezium_unavailable_value"
SPACES = st.sampled_from(["", "", "", " ", "\n\t", "  "])
NAMES = st.sampled_from(["id", "bio", "after", "before", "payload", 'q"uote', "back\\slash", "é😀", ""])  # fmt: skip
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from([PLACEHOLDER, f'"{PLACEHOLDER}"', '}],"after":{', "\\", '\\"', "{["]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
TEXTS = st.builds(lambda data, ascii_only: json.dumps(data, ensure_ascii=ascii_only), DATA, st.booleans())  # fmt: skip


def spaced(members_of, spaces):
    """A JSON object of names and texts."""
    before, after, between = spaces
    inner = f",{between}".join(f"{json.dumps(k)}{before}:{after}{v}{after}" for k, v in members_of)
    return f"{{{between}{inner}}}"


@st.composite
def events(draw):
    """An event as a function of the members of its images, these members, and new texts."""
    spaces = draw(st.tuples(SPACES, SPACES, SPACES))
    images, new = {}, {}
    for image in ("before", "after"):
        images[image] = draw(st.none() | st.dictionaries(NAMES, TEXTS, min_size=1, max_size=4))
        chosen = draw(st.sets(st.sampled_from(sorted(images[image] or {"x"})))) & set(images[image] or ())  # fmt: skip
        new[image] = {name: draw(TEXTS) for name in sorted(chosen)}
    rest = draw(st.lists(st.tuples(st.sampled_from(["source", "op", "é"]), TEXTS), unique_by=lambda m: m[0]))  # fmt: skip
    order = draw(st.permutations([*images, *(name for name, _ in rest)]))
    wrapping = draw(st.none() | TEXTS)

    def event(found):
        texts = {k: "null" if v is None else spaced(v.items(), spaces) for k, v in found.items()}
        texts |= dict(rest)
        whole = spaced([(name, texts[name]) for name in order], spaces)
        if wrapping is not None:
            whole = spaced([("schema", wrapping), ("payload", whole)], spaces)
        return (spaces[0] + whole + spaces[1]).encode()

    return event, images, new


@given(events())
def test_the_named_values_change_and_no_other_byte(case):
    event, images, new = case
    wanted = {k: v and v | new[k] for k, v in images.items()}
    raw = {image: {name: text.encode() for name, text in new[image].items()} for image in new}
    assert spliced(event(images), **raw) == event(wanted)


@given(st.lists(st.tuples(NAMES, TEXTS), max_size=5), st.tuples(SPACES, SPACES, SPACES))
def test_members_are_where_the_values_are(given_members, spaces):
    raw = spaced(given_members, spaces).encode()
    found = members(raw, 0)
    assert {k: json.loads(raw[m.start : m.end]) for k, m in found.items()} == json.loads(raw)


@given(st.binary(max_size=30) | st.text('{}[]",:\\ aeE1-tnul', max_size=30).map(str.encode))
def test_bytes_that_are_no_event_are_an_error_and_nothing_else(raw):
    try:
        spliced(raw, after={"a": b"1"})
    except ValueError:
        return
    raise AssertionError(raw)
