"""The connectors of `source.connectors`, as the progress topic remembers them; pure.

A connector is listed by its name. Which tables and signals are its own its topic prefix says, and
that is known from Connect. So the prefix is remembered: while the connector is away nobody else
answers its signals.

A connector deals with the signals that were sent since it is in the list. One that is added, or
named again, begins where the pipeline is: older signals were answered by those who were there.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from lakemark.snapshot.signal_skip import SIGNALS_KEY
from lakemark.state.progress import connectors_in, key_of, of_connector

KEY: Final = b"_connectors"
"""Of the record in the progress topic."""

Place = dict[int, int]
"""In the signals topic: the offset of the first signal to be read, by partition."""


class ListedConnector(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of them.

    Attributes:
        qualifier: its topic prefix; empty until it was known once.
        signals: where it began to be listed, until then.
    """

    qualifier: str = ""
    signals: Place = {}


def remembered(progress: Mapping[bytes, bytes]) -> dict[str, ListedConnector]:
    """Return the connectors by their names, from the newest records of the progress topic."""
    blob = progress.get(KEY)
    return msgspec.json.decode(blob, type=dict[str, ListedConnector]) if blob else {}


def updates(progress: Mapping[bytes, bytes], listed: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the records to write as a query starts; none where nothing is new.

    Args:
        progress: the newest records of the progress topic.
        listed: the connectors' qualifiers by their names; empty where they are not known now.
    """
    before, here, written = remembered(progress), _place(progress), dict[bytes, bytes]()
    known = {one.qualifier for one in before.values()}
    now = dict[str, ListedConnector]()
    for name, qualifier in listed.items():
        one = before.get(name, ListedConnector(signals=here))
        if qualifier and one.qualifier not in {"", qualifier}:  # the name is another source's
            one = ListedConnector(signals=here)
        if qualifier and qualifier not in known:
            known.add(qualifier)
            written |= _beginning(progress, qualifier, one.signals)
        now[name] = ListedConnector(qualifier) if qualifier else one
    if now != before:
        written[KEY] = msgspec.json.encode(now)
    return written


def _beginning(progress: Mapping[bytes, bytes], qualifier: str, since: Place) -> dict[bytes, bytes]:
    """Return where a connector that was not in the list begins to read signals."""
    own = of_connector(progress, qualifier)
    if own and KEY not in progress:
        return {}  # written by a lakemark that kept no list: it was in it
    stood = _stood(own)
    begins = _furthest(stood, since)
    if begins == stood:
        return {}
    return {key_of(qualifier, SIGNALS_KEY): msgspec.json.encode(begins)}


def _place(progress: Mapping[bytes, bytes]) -> Place:
    """Return the place up to which signals were dealt with by any connector."""
    every = (of_connector(progress, one) for one in connectors_in(progress))
    return _furthest(*map(_stood, every))


def _stood(own: Mapping[bytes, bytes]) -> Place:
    return msgspec.json.decode(own.get(SIGNALS_KEY, b"{}"), type=Place)


def _furthest(*places: Place) -> Place:
    found: Place = {}
    for place in places:
        for partition, offset in place.items():
            found[partition] = max(offset, found.get(partition, 0))
    return found
