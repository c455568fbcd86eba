"""The machine's own Chromium, driven by Playwright, and what a page did that nobody sees."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from stack.browser import find_browser

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 20_000
"""How long an effect is waited for: a deadline for a loaded machine, no duration."""


def chromium() -> str:
    """The browser's path.

    Where there is none the test is skipped, or fails if `REQUIRE_BROWSER` is set.
    """
    path = find_browser()
    if not path:
        missing = "no Chromium on this machine: apt-get install -y chromium (or LAKEMARK_CHROMIUM)"
        (pytest.fail if required() else pytest.skip)(missing)
    return path


def required() -> bool:
    """Whether tests of the page must not be skipped, as in continuous integration."""
    return bool(os.environ.get("REQUIRE_BROWSER"))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    path = chromium()
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Visit:
    """A page that is open, and what happened on it.

    Attributes:
        page: Playwright's.
        asked: address of every request.
        posted: path and body of every request that changes something.
        errors: what the console or an exception said, and requests that failed.
    """

    page: Page
    asked: list[str] = field(default_factory=list)
    posted: list[tuple[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@contextmanager
def visit(
    started: Browser, address: str, *, width: int = 1280, height: int = 900, scheme: Any = "light"
) -> Iterator[Visit]:
    """Opens an address in a context of its own.

    Args:
        started: the browser.
        address: where to go.
        width, height: of the window, in pixels.
        scheme: light or dark, as the system says it.
    """
    context = started.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_MS)
    made = Visit(context.new_page())

    def said(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            made.errors.append(f"{message.type}: {message.text}")

    def asked(request: Any) -> None:
        made.asked.append(request.url)
        if request.method != "GET":
            made.posted.append((request.url.removeprefix(address), request.post_data_json))

    made.page.on("console", said)
    made.page.on("pageerror", lambda error: made.errors.append(f"exception: {error}"))
    made.page.on("request", asked)
    try:
        made.page.goto(address)
        yield made
    finally:
        context.close()


def badge(address: str) -> str | None:
    """What a page that is opened now says of the pipeline; None on a machine without a browser."""
    if not find_browser() and not required():
        return None
    with browser() as started, visit(started, address) as seen:
        seen.page.wait_for_function("() => document.querySelector('#figures .value')")
        return seen.page.locator("#state").inner_text()
