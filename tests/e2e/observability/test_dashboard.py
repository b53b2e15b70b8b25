"""A visit to /dashboard in a real Chromium, on a cluster of real processes.

With BATON_SCREENSHOTS=FOLDER its pictures stay there, to be looked at.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.observability.browser import PATIENCE_MS, SIZES, chromium, visit
from tests.e2e.processes import Cluster

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

    from tests.e2e.guarded import Guarded
    from tests.e2e.observability.browser import Visit

LONG = "What is a baton? " * 12
FOCUSED = (
    "(({tagName, id, textContent}) => `${tagName} ${id || textContent.slice(0, 8)}`)"
    "(document.activeElement)"
)
MARKUP = "<img src=x onerror=window.violations.push('markup')><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Before the cluster: where there is no browser, none is started.
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def site(
    browser: Browser, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    cluster = Cluster(checkpoint, tmp_path_factory.mktemp("dashboard"))
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        for name in ("decode-0", "decode-1"):
            cluster.add_worker("decode", name, *ENGINE_FLAGS, "--local-prefill-threshold", "0")
        cluster.wait_ready(num_prefill=1, num_decode=2)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def visitor(browser: Browser, site: Cluster) -> Iterator[Visit]:
    """One visit that goes on through all tests of this file, as a person's would."""
    with visit(browser, f"{site.url}/dashboard") as made:
        made.page.route("**/v1/chat/completions", without_end)
        for worker in ("prefill-0", "decode-0", "decode-1"):
            wait_for_state(made.page, worker, "ready")
        yield made


def ask(page: Page, text: str, *, max_tokens: int = 24) -> None:
    page.get_by_label("Max tokens").fill(str(max_tokens))
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def wait_for_state(page: Page, worker: str, state: str) -> None:
    page.wait_for_selector(f"[data-worker={worker}][data-state={state}]")


def without_end(route: Route) -> None:
    """A random model may end its answer at any token, also at the first."""
    body = json.loads(route.request.post_data or "{}")
    route.continue_(post_data=json.dumps(body | {"ignore_eos": True}))


def test_it_shows_the_cluster(visitor: Visit) -> None:
    page = visitor.page
    workers = page.get_by_role("table", name=re.compile("Workers, their state"))
    assert workers.get_by_role("row").count() == 4
    row = workers.get_by_role("row", name=re.compile("prefill-0"))
    for said in ("prefill", "ready", "127.0.0.1:", "tiny", "/ 256"):
        assert said in row.inner_text()
    assert page.get_by_text("3 of 3").is_visible()
    assert page.get_by_text("No request has ended yet").is_visible()
    visitor.require_no_problem()


def test_the_chat_streams_an_answer_and_says_who_gave_it(visitor: Visit) -> None:
    page = visitor.page
    ask(page, LONG)
    answer = page.locator(".message.assistant[data-state=done]")
    answer.wait_for()
    facts = re.sub(r"\s+", " ", answer.locator(".facts-of-answer").inner_text())
    assert re.search(r"TTFT [\d.,]+ m?s", facts)
    assert re.search(r"[\d.,]+ tokens/s 24 tokens", facts)
    assert re.search(r"prefill-0 → decode-[01]", facts)
    assert answer.locator(".said").inner_text()
    assert page.get_by_text("Answer complete").count() == 1
    visitor.require_no_problem()


def test_the_request_is_listed_with_the_reason_of_its_route(visitor: Visit) -> None:
    page = visitor.page
    row = page.locator("[data-request]").first
    row.wait_for()
    said = row.inner_text()
    assert "prefill-0 → decode-" in said
    assert "length" in said
    opener = row.get_by_role("button")
    opener.click()
    reason = page.locator("tr.detail")
    reason.get_by_text("prefill-0 was the only prefill worker").wait_for()
    assert "decode-0" in reason.inner_text()
    assert "decode-1" in reason.inner_text()
    assert reason.get_by_text("Where its time went").is_visible()
    assert opener.get_attribute("aria-expanded") == "true"
    opener.click()
    assert page.locator("tr.detail").count() == 0
    transfers = page.get_by_role("table", name="Latest transfers")
    assert re.search(r"prefill-0 → decode-[01]", transfers.inner_text())
    assert "prefill-0 to decode-" in (page.locator(".flow svg").get_attribute("aria-label") or "")


def test_pointing_at_a_chart_reads_all_of_them_while_time_goes_on(visitor: Visit) -> None:
    page = visitor.page
    page.locator("#charts").scroll_into_view_if_needed()
    plot = page.locator(".u-over").first
    width = page.evaluate("document.querySelector('.u-over').clientWidth")
    plot.hover(position={"x": width - 4, "y": 40})
    at = page.locator(".chart h3 .muted")
    expect(at).to_have_count(8)
    up = page.locator(".facts").inner_text()
    expect(page.locator(".facts")).not_to_have_text(up)
    expect(at).to_have_count(8)
    page.get_by_label("Message").hover()
    expect(at).to_have_count(0)


def test_what_looks_like_markup_stays_text(visitor: Visit) -> None:
    page = visitor.page
    ask(page, MARKUP, max_tokens=2)
    page.locator(".message.assistant[data-state=done]").nth(1).wait_for()
    assert MARKUP in page.locator(".message.user").last.inner_text()
    assert page.locator(".message img, .message b b").count() == 0
    visitor.require_no_problem()


def test_an_answer_can_be_stopped_by_keyboard_alone(visitor: Visit) -> None:
    page = visitor.page
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Max tokens").fill("1800")
    page.get_by_label("Message").focus()
    page.keyboard.type("Go on and on")
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text(re.compile(r".{20}", re.DOTALL))
    page.keyboard.press("Escape")
    page.get_by_text("stopped", exact=True).wait_for()
    page.locator("[data-request]", has_text="cancelled").first.wait_for()
    assert page.get_by_role("button", name="Send").is_visible()


def test_the_page_can_be_walked_through_by_keyboard(browser: Browser, site: Cluster) -> None:
    with visit(browser, f"{site.url}/dashboard") as visitor:
        page = visitor.page
        page.locator(".opener").first.wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate(FOCUSED))
        assert seen >= {
            "BUTTON Why?",
            "SELECT chat-model",
            "INPUT chat-tokens",
            "TEXTAREA chat-text",
        }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_at_every_size_all_is_in_view_and_nobody_is_kept_out(
    visitor: Visit, scheme: str, tmp_path: Path
) -> None:
    page = visitor.page
    folder = Path(os.environ.get("BATON_SCREENSHOTS", tmp_path))
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
    opener = page.locator("[data-request]", has_text="prefill-0").first.get_by_role("button")
    opener.click()
    page.get_by_text("Where its time went").wait_for()
    for size, (width, _) in SIZES.items():
        visitor.resize(size)
        page.evaluate("scrollTo(0, 0)")
        expect(page.locator(".u-wrap canvas")).to_have_count(8)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, size
        page.screenshot(path=folder / f"dashboard-{size}-{scheme}.png")
    visitor.resize("phone")
    assert visitor.grave_violations() == []
    visitor.resize("desk")
    assert visitor.grave_violations() == []
    opener.click()
    visitor.require_no_problem()


def test_a_killed_worker_is_seen_to_go_and_to_return(visitor: Visit, site: Cluster) -> None:
    page = visitor.page
    lost = site.workers["decode-1"]
    lost.kill()
    wait_for_state(page, "decode-1", "lost")
    page.get_by_text("2 of 3").wait_for()
    told = page.get_by_role("status").first
    expect(told).to_have_text(re.compile("decode-1 is (suspended|lost)"))
    # The cluster still answers.
    page.get_by_role("button", name="New chat").click()
    ask(page, LONG, max_tokens=3)
    page.locator(".message.assistant[data-state=done]").first.wait_for()
    assert "→ decode-0" in page.locator(".facts-of-answer").first.inner_text()
    lost.start()
    wait_for_state(page, "decode-1", "ready")
    page.get_by_text("3 of 3").wait_for()
    changes = page.get_by_role("list", name="What changed last").inner_text()
    assert "decode-1 lost" in re.sub(r"\s+", " ", changes)
    visitor.require_no_problem()


def test_it_comes_back_by_itself_after_the_router_was_away(visitor: Visit, site: Cluster) -> None:
    page = visitor.page
    site.router.kill()
    page.get_by_text("The connection to the router is lost.").wait_for()
    # What was last seen stays.
    assert page.locator("[data-worker=prefill-0]").count() == 1
    site.router.start()
    wait_for_state(page, "decode-0", "ready")
    page.get_by_text("The connection to the router is lost.").wait_for(state="detached")
    assert page.get_by_text("No request has ended yet").is_visible()


def test_where_keys_are_asked_for_the_page_asks_for_them(
    browser: Browser, guarded: Guarded
) -> None:
    keys = guarded.disk.keys
    with visit(browser, f"{guarded.cluster.url}/dashboard") as visitor:
        page = visitor.page
        page.get_by_text("This router asks for a key").wait_for()
        assert visitor.grave_violations() == []
        page.get_by_label("Operator’s key").fill(keys["a"])
        page.keyboard.press("Enter")
        page.get_by_text("not an operator’s").wait_for()
        page.get_by_label("Operator’s key").fill(keys["ops"])
        page.get_by_label("Key for the chat").fill(keys["b"])
        page.keyboard.press("Enter")
        wait_for_state(page, "decode-0", "ready")
        ask(page, LONG, max_tokens=3)
        page.locator(".message.assistant[data-state=done]").wait_for()
        # Of tenant b: the chat has used its own key. Others may have asked this cluster before.
        tenant = page.locator("[data-request] th .since")
        tenant.filter(has_text=re.compile(r"^b$")).first.wait_for()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.get_by_role("button", name="Keys").click()
        page.get_by_role("button", name="Forget the keys").click()
        page.get_by_text("This router asks for a key").wait_for()
        assert page.evaluate("sessionStorage.length") == 0
