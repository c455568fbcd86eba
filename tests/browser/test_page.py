"""The page as a person sees it: the real server and board, in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from lakemark.errors import DependencyError
from lakemark.model.proof import TableProof
from lakemark.ops import lag
from lakemark.ops.status import CatalogChange, CatalogNow, SourceNow, SourceProblem
from lakemark.snapshot import notifications
from lakemark.snapshot.flight import Flight
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.tally import VerifyTally
from lakemark.state.tables import PipelineState
from stack.processes import wait_for
from tests.kit.browser import PATIENCE_MS, browser, visit
from tests.kit.lively import (
    ARCHIVE,
    CUSTOMERS,
    EVENTS,
    HINT,
    ITEMS,
    NAME,
    NOW,
    ORDERS,
    REASON,
    RUN,
    STORES,
    WAITING,
)
from tests.kit.site import Served, serve
from tests.kit.table_states import table_state

pytestmark = pytest.mark.slow

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    yield from serve(tmp_path)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    yield from serve(tmp_path, "http: {bind: 127.0.0.1:0, token: sesam-öffne-dich-鍵}")


@pytest.fixture
def shown(chrome: Browser, served: Served):
    """The page; it asks nobody else, and nothing goes wrong on it."""
    with visit(chrome, served.address) as found:
        yield found
        assert found.errors == []
        assert {url for url in found.asked if not url.startswith(f"{served.address}/")} == set()


def rows(page: Page) -> dict[str, list[str]]:
    """The cells of the tables, by the table's name."""
    expect(page.locator("#tables tr")).not_to_have_count(0)
    found = page.locator("#tables tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    )
    return {name: cells for name, *cells in found}


# --- what is shown ----------------------------------------------------------------------------


def test_every_table_with_its_state_and_lag(shown):
    found = rows(shown.page)
    assert list(found)[:2] == [CUSTOMERS, ARCHIVE], "what has stopped stands first"
    assert {name: cells[0] for name, cells in found.items()} == {
        CUSTOMERS: "errored",
        ARCHIVE: "paused",
        EVENTS: "catching up",
        ITEMS: "snapshotting",
        ORDERS: "snapshotting",
        WAITING: "waiting",
        STORES: "streaming",
    }
    assert found[CUSTOMERS][1] == "90 min · 4,220"
    assert found[ORDERS][1:6] == ["12 s · 30", "1,209,143", "606,866", "0", "10 s ago"]
    assert found[ITEMS][4] == "3"
    assert found[WAITING][1] == "\u2013"


def test_a_table_that_stopped_says_why_and_what_to_do(shown):
    problem = shown.page.locator("#trouble .problem")
    expect(problem).to_have_count(1)
    for text in (f"{CUSTOMERS} has stopped", "key-changed", REASON, "It is not retried."):
        expect(problem).to_contain_text(text)
    expect(problem.locator("code").last).to_have_text(HINT.split("`")[1])


def test_figures_and_charts_of_the_last_hour(shown):
    page = shown.page
    values = page.locator("#figures .value")
    expect(values).to_have_text(["12 s", "7", "51.7 M", "10 s ago", "tasks"])
    expect(page.locator("#figures")).to_contain_text("1\u00a0errored")
    for chart in ("events", "lag"):
        drawn = page.locator(f"#{chart}-chart polyline")
        expect(drawn).not_to_have_count(0)
        points = drawn.evaluate_all(
            "lines => lines.flatMap(l => [...l.points].map(p => [p.x, p.y]))"
        )
        assert len(points) > 300, "a point for each ten seconds"
        assert len({round(y) for _, y in points}) > 20, "it is no flat line"
        assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_a_snapshot_with_its_bars_windows_and_chunks_in_flight(shown):
    page = shown.page
    run = page.locator(".run", has_text=RUN)
    bars = run.locator("progress")
    expect(bars).to_have_count(2)
    assert bars.evaluate_all("bars => bars.map(b => b.value)") == [53, 0]
    expect(bars.first).to_have_attribute("aria-label", f"{ORDERS}: 53 %")
    expect(run.locator(".scan").first).to_contain_text("7/13\u00a0chunks")
    expect(run.locator(".chunk")).to_have_text(
        [
            "#7 settling · 100 k rows 1.2 s",
            "#8 waits for a window · 99.9 k rows 0.3 s",
            "#9 reading 0.8 s",
            "#10 reading 0.6 s",
        ]
    )
    expect(run.locator(".scan").last).to_contain_text("waits\u00a0for\u00a0its\u00a0turn")
    expect(page.locator("#windows")).to_have_text("2 windows in use, the newest opened 0.4 s ago")
    expect(page.locator(".run", has_text="first").locator("progress")).to_have_js_property(
        "value", 100
    )


def test_signals_and_their_answers(shown):
    found = shown.page.locator("#signals li")
    expect(found.locator(".badge")).to_have_text(
        ["no answer yet", "in progress", "rejected", "completed"]
    )
    refused = found.filter(has_text="typo")
    expect(refused.locator(".why")).to_have_text(
        "no captured table matches public.ordres → lakemark status lists the tables"
    )


BACK = "background-color"
STYLE = "(e, name) => getComputedStyle(e).getPropertyValue(name)"


# --- what changes -----------------------------------------------------------------------------


def test_it_follows_the_pipeline_without_being_loaded_again(shown, served: Served):
    page = shown.page
    expect(page.locator("#state")).to_have_text("streaming")
    expect(page).to_have_title(f"{NAME} · streaming")
    streams = page.locator("#tables .badge.streaming")
    # Nothing is read of an element that is made anew this very moment.
    green = wait_for(lambda: streams.evaluate(STYLE, BACK), PATIENCE_MS / 1000, "a colour")
    why = DependencyError("no broker answers", code="kafka-unavailable", hint="start the brokers")
    served.board.ends(None, why=why)
    expect(page.locator("#state")).to_have_text("degraded")
    expect(page.locator("#state")).to_have_class("badge degraded")
    problem = page.locator("#trouble .problem").first
    for text in (
        "The pipeline is degraded",
        "kafka-unavailable",
        "start the brokers",
        "It is retried.",
    ):
        expect(problem).to_contain_text(text)
    expect(page.locator("#figures .value").first).to_have_text("unknown")
    expect(streams, "nothing is well while nothing is written").not_to_have_css(BACK, green)
    served.board.ends(lag.Ends({}, {}))
    expect(page.locator("#state")).to_have_text("streaming")
    expect(streams).to_have_css(BACK, green)
    expect(page.locator("#trouble .problem")).to_have_count(1)
    full = Progress(chunks=13, total_chunks=13, rows=1_300_000, seconds=200)
    run = Subject(RUN, NAME, (ORDERS, ITEMS))
    served.board.notification(notifications.completed(run, progress=full, ts_ms=int(NOW * 1000)))
    served.board.flight(None)
    expect(page.locator(".run", has_text=RUN).locator(".badge")).to_have_text("completed")
    expect(page.locator(".chunk")).to_have_count(0)
    expect(page.locator("#controls")).to_be_hidden()


def test_what_keeps_snapshots_waiting_is_said(shown, served: Served):
    page = shown.page
    away = {"code": "database-refused", "reason": "the database refuses us", "hint": "check it"}
    served.board.flight(Flight(waits_for="transaction 77 (pid 4, psql)", **away))
    waits = page.locator("#waits .problem")
    expect(waits).to_have_count(2)
    for text in ("Snapshots wait", *away.values(), "It is retried."):
        expect(waits.first).to_contain_text(text)
    expect(waits.last).to_contain_text("transaction 77 (pid 4, psql)")


def test_a_server_that_is_gone_is_never_shown_as_well(chrome: Browser, tmp_path: Path):
    life = serve(tmp_path)
    with visit(chrome, next(life).address) as found:
        expect(found.page.locator("#state")).to_have_text("streaming")
        assert next(life, None) is None  # ends it
        expect(found.page.locator("#away")).to_contain_text("what is shown is old", timeout=40_000)
        expect(found.page.locator("#state")).to_have_text("no answer")
        expect(found.page.locator("#state")).to_have_class("badge")


# --- what can be asked for --------------------------------------------------------------------


def test_a_table_is_paused_and_resumed(shown, served: Served):
    page = shown.page
    page.get_by_role("button", name=f"Pause {ORDERS}", exact=True).click()
    expect(page.locator("#said")).to_have_text(f"{ORDERS} will pause with the next batch")
    page.get_by_role("button", name=f"Resume {CUSTOMERS}", exact=True).click()
    expect(page.locator("#said")).to_have_text(f"{CUSTOMERS} will resume with the next batch")
    assert served.written == [("table-pause", ORDERS), ("table-resume", CUSTOMERS)]
    assert shown.posted == [
        (f"/v1/tables/{ORDERS}/pause", {}),
        (f"/v1/tables/{CUSTOMERS}/resume", {}),
    ]
    expect(page.get_by_role("button", name=f"Pause {WAITING}", exact=True)).to_be_disabled()


def test_a_click_is_not_lost_when_the_page_is_drawn_in_its_middle(shown, served: Served):
    page = shown.page
    button = page.get_by_role("button", name=f"Pause {ORDERS}", exact=True)
    button.hover()
    page.mouse.down()
    for _ in range(2):  # what the first of them says is drawn before the second is sent
        with page.expect_request("**/v1/status"):
            pass
    page.mouse.up()
    expect(page.locator("#said")).to_have_text(f"{ORDERS} will pause with the next batch")
    assert served.written == [("table-pause", ORDERS)]
    kept = button.element_handle()
    wait_for(lambda: not kept.evaluate("e => e.isConnected"), PATIENCE_MS / 1000, "the next draw")


def test_a_snapshot_of_chosen_tables_with_a_filter(shown, served: Served):
    page = shown.page
    page.get_by_role("button", name="New snapshot").click()
    dialog = page.get_by_role("dialog", name="New snapshot")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_have_text("Choose at least one table.")
    assert served.written == []
    dialog.get_by_label(ORDERS).check()
    dialog.get_by_label(EVENTS).check()
    dialog.get_by_label(re.compile("Only rows for which")).fill("total > 5")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_be_hidden()
    ((kind, text),) = served.written
    sent = json.loads(text)
    assert (kind, sent["type"]) == ("signal", "execute-snapshot")
    assert sent["data"] == {
        "data-collections": [ORDERS, EVENTS],
        "additional-conditions": [
            {"data-collection": ORDERS, "filter": "total > 5"},
            {"data-collection": EVENTS, "filter": "total > 5"},
        ],
    }
    expect(page.locator("#said")).to_contain_text(sent["id"])


def test_a_comparison_is_asked_for_in_the_same_place(shown, served: Served):
    page = shown.page
    page.get_by_role("button", name="New snapshot").click()
    dialog = page.get_by_role("dialog", name="New snapshot")
    dialog.get_by_label(ORDERS).check()
    mend = dialog.get_by_label("and mend what differs")
    expect(mend).to_be_disabled()
    dialog.get_by_label(re.compile("Only compare")).check()
    mend.check()
    dialog.get_by_label(re.compile("Only compare")).uncheck()
    expect(mend).not_to_be_checked()
    dialog.get_by_label(re.compile("Only compare")).check()
    mend.check()
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_be_hidden()
    sent = json.loads(served.written[-1][1])
    assert sent["type"] == "verify-snapshot"
    assert sent["data"] == {"data-collections": [ORDERS], "repair": True}


@pytest.mark.parametrize(
    ("tally", "said"),
    [
        (VerifyTally(scanned=9), "as in the source"),
        (VerifyTally(missing=1, extra=2, differing=3, left=4),
         "1 missing, 2 only in the lake, 3 different, 4 not compared"),
    ],
)  # fmt: skip
def test_what_a_comparison_has_found(shown, served: Served, tally, said):
    done = Progress(2, 2, 900, 1.0, tally=tally)
    subject = Subject("proof", NAME, (ORDERS,))
    served.board.notification(
        notifications.table_scan_completed(
            subject, table=ORDERS, status=ScanStatus.SUCCEEDED, progress=done, ts_ms=int(NOW * 1000)
        )
    )
    served.board.notification(
        notifications.completed(subject, progress=done, ts_ms=int(NOW * 1000))
    )
    run = shown.page.locator(".run", has_text="proof")
    expect(run.locator(".text")).to_contain_text(said.replace(" ", "\u00a0"))


def test_a_snapshot_is_asked_for_only_when_the_tables_are_known(shown):
    page, known = shown.page, []

    def answer(route):
        if known:
            route.continue_()

    page.route("**/v1/status", answer)
    page.reload(wait_until="domcontentloaded")
    button = page.get_by_role("button", name="New snapshot")
    expect(button).to_be_disabled()
    known.append(True)
    page.reload(wait_until="domcontentloaded")
    button.click()
    dialog = page.get_by_role("dialog", name="New snapshot")
    expect(dialog.locator("#choices input")).to_have_count(7)
    page.unroute_all(behavior="ignoreErrors")


def test_what_is_refused_is_said_in_the_dialog(chrome: Browser, served: Served):
    with visit(chrome, served.address) as found:
        page = found.page
        page.get_by_role("button", name="New snapshot").click()
        dialog = page.get_by_role("dialog", name="New snapshot")
        dialog.get_by_label("All").check()
        assert dialog.locator("#choices input:checked").count() == 7
        dialog.get_by_label(re.compile("Only rows for which")).fill("now() > placed")
        dialog.get_by_role("button", name="Start").click()
        expect(dialog.get_by_role("alert")).to_contain_text("→")
        expect(dialog).to_be_visible()
        served.away = True
        dialog.get_by_label(re.compile("Only rows for which")).fill("")
        dialog.get_by_role("button", name="Start").click()
        expect(dialog.get_by_role("alert")).to_have_text("Kafka is away → start it")
        assert served.written == []


def test_what_is_asked_for_second_is_sent_second(shown, served: Served):
    page, held = shown.page, []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/signals", hold)
    page.get_by_role("button", name="Pause all").click()
    page.get_by_role("button", name="Stop all").click()
    page.evaluate("() => fetch('/v1/status').then((answer) => answer.json())")
    assert [route.request.post_data_json["type"] for route in held] == ["pause-snapshot"]
    held[0].continue_()
    expect(page.locator("#said")).to_have_text("The signal was sent.")
    assert [json.loads(text)["type"] for _, text in served.written] == ["pause-snapshot"]
    page.evaluate("() => fetch('/v1/status').then((answer) => answer.json())")
    held[1].continue_()
    wait_for(lambda: len(served.written) == 2, PATIENCE_MS / 1000, "two signals")
    assert json.loads(served.written[1][1])["type"] == "stop-snapshot"


def test_all_snapshots_are_paused_resumed_and_stopped(shown, served: Served):
    page = shown.page
    expect(page.get_by_role("button", name="Resume all")).to_be_hidden()
    page.get_by_role("button", name="Pause all").click()
    expect(page.locator("#said")).to_have_text("The signal was sent.")
    run = Subject(RUN, NAME, (ORDERS, ITEMS))
    served.board.notification(notifications.paused(run, ts_ms=int(NOW * 1000)))
    page.get_by_role("button", name="Resume all").click()
    expect(page.get_by_role("button", name="Pause all")).to_be_hidden()
    page.get_by_role("button", name="Stop all").click()
    wait_for(lambda: len(served.written) == 3, PATIENCE_MS / 1000, "three signals")
    kinds = ["pause-snapshot", "resume-snapshot", "stop-snapshot"]
    assert {kind for kind, _ in served.written} == {"signal"}
    signals = [json.loads(text) for _, text in served.written]
    assert [sent["type"] for sent in signals] == kinds
    assert all(sent["data"] == {} for sent in signals)
    assert len({sent["id"] for sent in signals}) == 3


def test_with_a_token_it_asks_for_it_once(chrome: Browser, guarded: Served):
    with visit(chrome, guarded.address) as found:
        page = found.page
        dialog = page.get_by_role("dialog", name="Token")
        expect(dialog).to_be_visible()
        assert page.locator("#tables tr").count() == 0
        dialog.get_by_label(re.compile("http.token")).fill("sesam-öffne-dich-鍵")
        dialog.get_by_role("button", name="Go on").click()
        assert ORDERS in rows(page)
        page.get_by_role("button", name=f"Pause {ORDERS}", exact=True).click()
        expect(page.locator("#said")).to_contain_text("will pause")
        assert guarded.written == [("table-pause", ORDERS)]
        page.reload()
        assert ORDERS in rows(page)
        expect(dialog).to_be_hidden()


def test_an_answer_that_is_late_does_not_ask_for_the_token_again(chrome: Browser, guarded: Served):
    held = []

    def answer(route):
        if "authorization" in route.request.headers:
            route.continue_()
        else:
            held.append(route)

    with visit(chrome, guarded.address) as found:
        page = found.page
        dialog = page.get_by_role("dialog", name="Token")
        expect(dialog).to_be_visible()
        page.route("**/v1/history", answer)
        page.reload()
        expect(dialog).to_be_visible()
        wait_for(lambda: held or page.wait_for_timeout(20), PATIENCE_MS / 1000, "history asked for")
        dialog.get_by_label(re.compile("http.token")).fill("sesam-öffne-dich-鍵")
        dialog.get_by_role("button", name="Go on").click()
        assert ORDERS in rows(page)
        with page.expect_response(lambda response: response.status == 401) as refused:
            held[0].continue_()
        refused.value.finished()
        page.evaluate("() => new Promise(done => setTimeout(done, 0))")  # it was taken in
        expect(dialog).to_be_hidden()


# --- for everybody, everywhere ----------------------------------------------------------------

FIND_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && e.checkVisibility())
  .filter(e => getComputedStyle(e).clipPath === 'none' && !e.closest('.hidden, thead'))
  .map(e => e.tagName + '.' + e.className)"""

# Relative luminance and contrast as WCAG 2 defines them, of every text against what lies behind it.
FIND_PALE = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const found = parse(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found; } return [255, 255, 255]; };
  return [...document.querySelectorAll('body *')]
    .filter(e => e.checkVisibility() && !e.disabled && [...e.childNodes]
      .some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => { const [one, other] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
      return [(Math.max(one, other) + .05) / (Math.min(one, other) + .05), e.textContent.trim()]; })
    .filter(([contrast]) => contrast < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_light_and_dark_on_every_width(chrome: Browser, served: Served, width: int, scheme: str):
    with visit(chrome, served.address, width=width, height=844, scheme=scheme) as found:
        page = found.page
        assert len(rows(page)) == 7
        expect(page.locator("#lag-chart polyline")).not_to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 390:  # between, the table may be scrolled inside of its card
            assert page.evaluate(FIND_WIDE) == []
        assert page.evaluate(FIND_PALE) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")
        if width == 390:
            page.get_by_role("button", name="New snapshot").click()
            expect(page.get_by_role("dialog", name="New snapshot")).to_be_in_viewport()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(FIND_PALE) == []
        assert found.errors == []


def test_everything_can_be_done_with_the_keyboard(shown, served: Served):
    page = shown.page
    assert len(rows(page)) == 7
    wanted = {
        element.get_attribute("aria-label") or element.inner_text()
        for element in page.get_by_role("button").all()
        if element.is_enabled() and element.is_visible()
    }
    assert {"New snapshot", f"Pause {ORDERS}", "Stop all"} <= wanted
    reached, outlined = set(), set()
    for _ in range(len(wanted) + 6):  # the search field, the links, the document
        page.keyboard.press("Tab")
        name, visible = page.evaluate(
            """() => { const e = document.activeElement;
              return [e.getAttribute('aria-label') || e.innerText || '',
                      getComputedStyle(e).outlineStyle !== 'none']; }"""
        )
        reached.add(name)
        outlined |= {name} if visible else set()
    assert wanted <= reached
    assert wanted <= outlined, "what has the focus is seen"
    page.get_by_role("button", name=f"Pause {ORDERS}", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("will pause")
    assert served.written == [("table-pause", ORDERS)]
    page.get_by_role("button", name="New snapshot").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="New snapshot")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="New snapshot")).to_be_hidden()


def test_the_focus_stays_where_it_is_when_the_numbers_change(shown, served: Served):
    page = shown.page
    chosen = page.get_by_role("button", name=f"Pause {ITEMS}", exact=True)
    chosen.focus()
    served.clock.now += 30
    expect(page.locator("#tables tr", has_text=ITEMS)).to_contain_text("40 s ago")
    expect(chosen).to_be_focused()


def test_names_and_reasons_are_text_and_never_markup(shown, served: Served):
    served.board.captured(["public.<img src=x onerror=alert(1)>"])
    expect(shown.page.locator("#tables")).to_contain_text("<img src=x onerror=alert(1)>")
    assert shown.page.locator("#tables img").count() == 0


# --- the source -------------------------------------------------------------------------------

FAILED = SourceProblem(
    "connector-failed",
    "task 0 of the connector shop has FAILED (RecordTooLargeException: The message is … bytes)",
    "mend it, then `curl -X POST 'http://connect:8083/connectors/shop/restart'`",
    int((NOW - 300) * 1000),
)


def test_a_source_that_sends_nothing_stands_at_the_top(shown, served: Served):
    page = shown.page
    streams = page.locator("#tables .badge.streaming")
    green = wait_for(lambda: streams.evaluate(STYLE, BACK), PATIENCE_MS / 1000, "a colour")
    seen = {"asked_ms": int(NOW * 1000), "watched": True, "proven_ms": int((NOW - 7200) * 1000)}
    served.board.source(SourceNow(**seen, connector="FAILED", problems=(FAILED,)))
    problem = page.locator("#trouble .problem").first
    for text in ("No changes come from the source", FAILED.code, FAILED.reason, "5 min ago"):
        expect(problem).to_contain_text(text)
    expect(problem.locator("code").last).to_contain_text("curl -X POST")
    expect(page.locator("#figures .more").first).to_contain_text("all sent as of 12 s ago")
    expect(page.locator("#state")).to_have_class("badge standby")
    expect(streams, "nothing is well while nothing comes").not_to_have_css(BACK, green)
    served.board.source(SourceNow(**{**seen, "proven_ms": int((NOW - 4) * 1000)}))
    expect(page.locator("#trouble .problem")).to_have_count(1)
    expect(page.locator("#figures .more").first).to_have_text(
        "180 records unread; all sent as of 4.0 s ago"
    )
    expect(streams).to_have_css(BACK, green)


def test_what_the_database_changed_without_an_event_is_listed(shown, served: Served):
    page = shown.page
    expect(page.locator("#catalog")).to_be_hidden()
    at = int((NOW - 60) * 1000)
    found = (
        CatalogChange(ORDERS, "column-added", "read-again", "column <b>c</b> was added", "", at),
        CatalogChange(ITEMS, "not-published", "stop", "it left", "`ALTER PUBLICATION p`", at),
        CatalogChange("", "timeline-changed", "nothing", "the server moved", "", at),
    )
    served.board.catalog(CatalogNow(at, changes=found))
    listed = page.locator("#changes li")
    expect(listed).to_have_count(3)
    for text in (
        "column <b>c</b> was added",
        ORDERS,
        "column-added",
        "60 s ago",
        "snapshotted by itself",
    ):
        expect(listed.nth(0)).to_contain_text(text)
    expect(listed.nth(1).locator(".badge.errored")).to_have_text("the table stops")
    expect(listed.nth(1).locator("code")).to_have_text("ALTER PUBLICATION p")
    expect(listed.nth(2)).to_contain_text("the server")
    served.board.catalog(CatalogNow(at, "the database is away", found))
    box = page.locator("#trouble .problem").filter(has_text="catalog cannot be looked at")
    expect(box).to_contain_text("the database is away")
    expect(box).to_contain_text("it was seen last 60 s ago")


def test_since_when_a_table_is_proved(shown):
    found = rows(shown.page)
    assert found[ORDERS][6] == "2 d ago"
    assert found[STORES][6] == "never"
    assert found[WAITING][6] == "\u2013", "there is nothing to prove"
    title = shown.page.locator("#tables tr", has_text=ORDERS).locator("[data-label=proved]")
    expect(title).to_have_attribute(
        "title", re.compile("1,204,553 rows compared up to position 0100.*12 left to newer events")
    )


def test_what_verify_runs_have_found_is_said_with_what_was_done(shown, served: Served):
    at = int(NOW * 1000)
    ended = {"turn_ms": at - 9000, "ended_ms": at - 5000, "run": "v"}
    names = [f"public.p{n}" for n in range(3)]
    tables = {name: table_state(rows=1, topics=["t"], engine="task-merge") for name in names}
    proofs = {
        names[0]: TableProof(**ended, found={"missing": 2, "differing": 1}),
        names[1]: TableProof(**ended, found={"extra": 4}, mended=True, proved_ms=at - 9000),
        names[2]: TableProof(**ended, code="no-key", reason="it has no key", hint="give it one"),
    }
    served.board.tables(PipelineState(batch=1, tables=tables, proofs=proofs))
    served.board.captured([])
    boxes = shown.page.locator("#trouble .problem")
    expect(boxes).to_have_count(3)
    expect(boxes.nth(0)).to_contain_text("2 missing, 1 different")
    expect(boxes.nth(0)).to_contain_text("lakemark verify public.p0")
    expect(boxes.nth(1)).to_contain_text("4 only in the lake; all of it was mended")
    expect(boxes.nth(2)).to_contain_text("Not verified: it has no key")


def test_what_is_the_same_for_many_tables_is_one_box(shown, served: Served):
    page = shown.page
    why = {"state": "errored", "code": "no-key", "rows": 1, "topics": ["t"]}
    tables = {
        f"public.t{n:03}": table_state(
            **why, reason=f"public.t{n:03} has no key", hint=f"resume `public.t{n:03}`",
            resnapshot="events may be missing",
        )
        for n in range(250)
    }  # fmt: skip
    served.board.tables(PipelineState(batch=1, tables=tables))
    served.board.captured([])
    problems = page.locator("#trouble .problem")
    expect(problems).to_have_count(2)
    expect(problems.first).to_contain_text("public.t002 and 247 more have stopped")
    expect(problems.first).to_contain_text("TABLE has no key")
    expect(problems.last).to_contain_text("events may be missing")
