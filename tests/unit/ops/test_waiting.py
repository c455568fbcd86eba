"""Waits over HTTP: what is asked, what is answered, and that few hold the server for a short time."""

import threading
import time

import pytest
from starlette.datastructures import QueryParams

from lakemark.errors import RefusedError
from lakemark.ops.http.waiting import LONGEST_S, request_of
from lakemark.ops.waits import WaitRequest
from lakemark.state.tables import PipelineState
from tests.kit.site import A, Site
from tests.kit.waited import ToldEvents, whole_table


@pytest.fixture
def side():
    return ToldEvents(log_end=100)


@pytest.fixture
def site(side):
    made = Site()
    made.board.pipeline("streaming")
    made.board.captured([A])
    state = PipelineState(batch=1, offsets={"t.a": {0: 5}}, tables={A: whole_table("t.a")})
    made.board.tables(state)
    with made.waits.attached([side], lambda _: 7):
        yield made


@pytest.mark.parametrize(
    ("query", "request_", "seconds"),
    [
        ("now=true", WaitRequest(), 10),
        ("now&table=a&table=b&timeout=0.5", WaitRequest(("a", "b")), 0.5),
        ("position=0/1&timeout=9999", WaitRequest((), (("", "0/1"),)), LONGEST_S),
        ("connector=x&position=1&connector=y&position=2", WaitRequest((), (("x", "1"), ("y", "2"))), 10),
    ],
)  # fmt: skip
def test_what_a_request_asks_for(query, request_, seconds):
    assert request_of(QueryParams(query)) == (request_, seconds)


@pytest.mark.parametrize(
    "query",
    [
        *("", "table=a", "now=no", "now=true&position=0/1", "now=true&connector=x"),
        *("position=0/1&connector=x&connector=y", "now=true&tables=a"),
        *("now=true&timeout=soon", "now=true&timeout=-1", "now=true&timeout=nan"),
        "now=true&timeout=inf",
    ],
)
def test_a_request_that_is_wrong_is_refused(query, site):
    with pytest.raises(RefusedError) as refused:
        request_of(QueryParams(query))
    answer = site.get(f"/v1/wait?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, refused.value.code)
    assert answer.json()["hint"]


def test_it_is_answered_as_soon_as_all_is_visible_or_in_time(site, side):
    begun = time.monotonic()
    answer = site.get("/v1/wait?now=true&timeout=0.3")
    assert 0.3 <= time.monotonic() - begun < 5
    assert answer.status_code == 202
    assert answer.json()["tables"][0]["code"] == "waits-for-connector"
    side.committed, side.ends = 100, {"t.a": {0: 5}}
    answer = site.get("/v1/wait?position=0/64&timeout=30")
    assert answer.status_code == 200
    assert answer.json() == {
        "visible": True,
        "positions": [{"connector": "", "position": "0/64"}],
        "tables": [
            {"table": A, "visible": True, "version": 7, "code": "", "reason": "", "hint": ""}
        ],
    }


def test_it_waits_for_what_comes_meanwhile(site, side):
    later = threading.Timer(0.3, lambda: setattr(side, "committed", 100))
    side.ends = {"t.a": {0: 5}}
    later.start()
    assert site.get("/v1/wait?now=true&timeout=20").status_code == 200
    later.join()


def test_tables_that_there_are_not_and_pipelines_that_do_not_stream(site, side):
    assert site.get("/v1/wait?now=true&table=none").status_code == 404
    with site.waits.attached([], lambda _: 7):
        answer = site.get("/v1/wait?now=true")
    assert (answer.status_code, answer.json()["code"]) == (503, "cannot-wait")


def test_it_needs_what_all_answers_need():
    assert Site(token="t").get("/v1/wait?now=true").status_code == 401
    site = Site()
    answer = site.get("/v1/wait?now=true", headers={"sec-fetch-site": "cross-site"})
    assert (answer.status_code, answer.json()["code"]) == (403, "cross-site")


def test_few_wait_at_once_and_the_others_are_told_so(site):
    answers: list[int] = []

    def ask() -> None:
        answers.append(site.get("/v1/wait?now=true&timeout=1").status_code)

    with site.client:  # one event loop for all of them
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [202, 202, 503]
    assert site.get("/v1/wait?now=true&timeout=0").status_code == 202
