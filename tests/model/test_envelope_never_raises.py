"""Decoding survives any bytes, and never takes a broken record for a good one."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.json import envelope
from lakemark.model.events import Headers, Kind, SourceIdentity
from tests.kit.golden import case, cases, samples
from tests.kit.nightly import examples


def is_json(value):
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


GOLDEN = [r.value for w in (False, True) for r in samples(wrapped=w).values() if r.value]
GOLDEN += [r.value for name in cases() for r in case(name) if r.value]
# Large images make shrinking slow and add nothing.
GOLDEN = [v for v in GOLDEN if len(v) < 4096]
VALID = [v for v in GOLDEN if is_json(v)]

IDENTITIES = st.sampled_from(
    [
        SourceIdentity("postgresql", "shop", "public.dbz_signal"),
        SourceIdentity("postgresql", "shops", "public.dbz_signal"),
        SourceIdentity("mysql", "dbserver1"),
        SourceIdentity("", ""),
    ]
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([1 << 63, 1 << 64, -(1 << 63) - 1, 10**30, 1e300, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["c", "u", "d", "r", "t", "m", "x", "", "\x00", "\ud800"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@st.composite
def broken_bytes(draw):
    value = bytearray(draw(st.sampled_from(GOLDEN)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(value) - 1)))
        how = draw(st.integers(0, 3))
        if how == 0:
            value[at : at + 1] = draw(st.binary(min_size=1, max_size=3))
        elif how == 1:
            del value[at : at + draw(st.integers(1, 40))]
        elif how == 2:
            value[at:at] = draw(st.sampled_from([b'"', b"{", b"}", b"[", b",", b"\\", b"\x00"]))
        else:
            del value[at:]
    return bytes(value)


def paths(value, prefix=()):
    yield prefix
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in {"after", "before", "fields"}:
                yield from paths(inner, (*prefix, name))
            else:
                yield (*prefix, name)


@st.composite
def swapped_types(draw):
    value = json.loads(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(paths(value), key=repr)))
        new = draw(ANYTHING)
        if not path:
            return json.dumps(new).encode()
        inner = value
        for name in path[:-1]:
            inner = inner[name]
        if draw(st.booleans()):
            inner[path[-1]] = new
        else:
            del inner[path[-1]]
        if not isinstance(value, dict):
            break
    return json.dumps(value, separators=(",", ":")).encode()


VALUES = st.lists(
    st.one_of(
        broken_bytes(), swapped_types(), st.sampled_from(GOLDEN), st.binary(max_size=40), st.none()
    ),
    max_size=6,
)
KEYS = st.one_of(st.none(), st.binary(max_size=8), st.just(b'{"id":1}'))


def check(out: Headers, values: list[bytes | None]) -> None:
    columns = (
        out.kind, out.table, out.op, out.position, out.source_ts, out.snapshot,
        out.before, out.after, out.schema, out.reason, out.detail,
    )  # fmt: skip
    assert {len(c) for c in columns} == {len(values)}
    for at, kind in enumerate(out.kind):
        assert (out.reason[at] is not None) == (kind == Kind.BAD)
        assert len(out.position[at]) == lsns.WIDTH
        assert -(1 << 63) <= out.source_ts[at] < 1 << 63
        out.table[at].encode()
        for text in (out.before[at], out.after[at], out.schema[at]):
            if text is not None:
                json.loads(text.decode())
        if kind in {Kind.CHANGE, Kind.OWN_SNAPSHOT, Kind.INCREMENTAL, Kind.TRUNCATE}:
            assert out.table[at]
            assert json.loads(values[at])  # what counts as a change is valid JSON as a whole


@settings(
    max_examples=examples(150, nightly=3000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(VALUES, st.lists(KEYS, min_size=6, max_size=6), IDENTITIES, st.sampled_from([600, 1 << 20]))
def test_any_bytes(values, keys, identity, max_bytes):
    options = {"identity": identity, "epoch": 1, "max_bytes": max_bytes}
    out = envelope.decode(values, keys[: len(values)], **options)
    check(out, values)


@settings(
    max_examples=examples(80, nightly=1500),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(VALUES, IDENTITIES)
def test_a_record_decodes_alone_as_it_does_in_company(values, identity):
    """No record's outcome depends on its neighbours or on what was decoded before."""
    keys = [b"1"] * len(values)
    together = envelope.decode(values, keys, identity=identity, epoch=1)
    for at, value in enumerate(values):
        alone = envelope.decode([value], keys[:1], identity=identity, epoch=1)
        for name in ("kind", "table", "op", "position", "source_ts", "snapshot", "before", "after",
                     "schema", "reason", "detail"):  # fmt: skip
            assert getattr(alone, name)[0] == getattr(together, name)[at], name
