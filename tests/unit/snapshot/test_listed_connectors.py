"""The list of connectors: whose prefix is known, and from which signal on each has a part."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lakemark.snapshot.listed_connectors import KEY, remembered, updates
from lakemark.snapshot.signal_skip import SIGNALS_KEY
from lakemark.state.progress import is_own, key_of, of_connector


class Progress(dict):
    """A progress topic, compacted."""

    def start(self, **listed):
        """A query starts with these connectors; returns the qualifiers that are remembered."""
        self.update(updates(self, listed))
        return {name: one.qualifier for name, one in remembered(self).items()}

    def read(self, connector, offset):
        """A connector has dealt with the signals before an offset."""
        self[key_of(connector, SIGNALS_KEY)] = json.dumps({0: offset}).encode()

    def begins(self, connector):
        """Where a connector reads on; -1: at the beginning."""
        own = of_connector(self, connector)
        return json.loads(own.get(SIGNALS_KEY, b"{}")).get("0", -1)


def test_one_that_is_added_begins_where_the_pipeline_is():
    progress = Progress()
    progress.start(shop="shop")
    progress.read("shop", 7)
    progress.start(shop="shop", crm="crm")
    assert progress.begins("crm") == 7
    assert progress.begins("shop") == 7


def test_those_of_a_new_pipeline_read_all_signals():
    progress = Progress()
    assert progress.start(shop="shop", crm="crm") == {"shop": "shop", "crm": "crm"}
    assert progress.begins("shop") == progress.begins("crm") == -1


def test_signals_wait_for_one_that_is_away():
    progress = Progress()
    progress.start(shop="shop", crm="crm")
    progress.read("shop", 3)
    progress.read("crm", 3)
    assert progress.start(shop="shop", crm="") == {"shop": "shop", "crm": "crm"}
    progress.read("shop", 9)
    progress.start(shop="shop", crm="crm")
    assert progress.begins("crm") == 3


def test_signals_wait_for_one_whose_prefix_nobody_knows_yet():
    progress = Progress()
    progress.start(shop="shop")
    progress.read("shop", 3)
    assert progress.start(shop="shop", crm="") == {"shop": "shop", "crm": ""}
    progress.read("shop", 9)
    assert progress.start(shop="shop", crm="") == {"shop": "shop", "crm": ""}
    assert progress.start(shop="shop", crm="crm") == {"shop": "shop", "crm": "crm"}
    assert progress.begins("crm") == 3


def test_one_that_was_taken_out_begins_where_the_pipeline_is_when_it_is_named_again():
    progress = Progress()
    progress.start(shop="shop", crm="crm")
    progress.read("shop", 3)
    progress.read("crm", 3)
    assert progress.start(shop="shop") == {"shop": "shop"}
    progress.read("shop", 9)
    progress.start(shop="shop", crm="crm")
    assert progress.begins("crm") == 9


def test_a_name_that_is_another_sources_now_begins_where_the_pipeline_is():
    progress = Progress()
    progress.start(shop="shop", crm="crm")
    progress.read("shop", 9)
    assert progress.start(shop="shop", crm="sales") == {"shop": "shop", "crm": "sales"}
    assert progress.begins("sales") == 9


def test_another_name_of_the_same_source_reads_on():
    progress = Progress()
    progress.start(shop="shop", crm="crm")
    progress.read("shop", 9)
    progress.read("crm", 3)
    progress.start(shop="shop", sales="crm")
    assert progress.begins("crm") == 3


def test_a_list_that_nobody_kept_is_begun_and_nobody_is_moved():
    progress = Progress()
    progress.read("shop", 9)
    progress.read("crm", 3)
    progress.start(shop="shop", crm="crm")
    assert (progress.begins("shop"), progress.begins("crm")) == (9, 3)


def test_two_of_one_prefix_are_one_source():
    progress = Progress()
    progress.start(shop="shop", crm="crm")
    progress.read("shop", 3)
    progress.read("crm", 9)
    progress.start(shop="shop", crm="crm", copy="shop")
    assert progress.begins("shop") == 3


NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.dictionaries(NAMES, st.booleans(), min_size=1), st.integers(0, 3))))
def test_each_reads_the_signals_since_it_is_listed_once_and_none_that_others_had_answered(life):
    """Starts with some connectors, of which some are there, and signals that are sent meanwhile."""
    progress, ends, answered = Progress(), 0, 0
    due: dict[str, set[int]] = {}
    for listed, sent in life:
        here = [name for name, is_here in listed.items() if is_here]
        if not here:
            continue  # the pipeline waits
        due = {name: due.get(name, {*range(answered, ends)}) for name in listed}
        progress.start(**{name: name if is_here else "" for name, is_here in listed.items()})
        for waiting in due.values():
            waiting.update(range(ends, ends + sent))
        ends += sent
        for name in here:
            begins = max(progress.begins(name), 0)
            assert {*range(begins, ends)} == due[name], name
            due[name], answered = set(), ends
            if ends > begins:
                progress.read(name, ends)


def test_its_record_is_no_tables():
    assert is_own(KEY)
    assert updates({}, {}) == {}
