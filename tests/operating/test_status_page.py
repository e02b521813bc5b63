"""The status page in a real browser, and what it does and doesn't allow."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.operating.browser import Browser, started_browser
from tests.operating.conftest import Frontdoor
from tests.standin.processes import HTTP, TOKEN, wait_until

SECONDS = 60


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """Every test has a browser of its own, which nothing has touched."""
    with started_browser(tmp_path) as browser:
        yield browser


@pytest.fixture(autouse=True)
def awake(frontdoor: Frontdoor) -> None:
    """Every test begins with both services awake and not pinned."""
    for name in ("text", "embed"):
        if frontdoor.router.status(name)["conditions"]:
            frontdoor.router.order(f"services/{name}/prove", 60)
        frontdoor.router.order(f"services/{name}/unpin", 60)
        assert frontdoor.router.order(f"services/{name}/wake", 60).status_code == 200


def opened(browser: Browser, frontdoor: Frontdoor) -> Browser:
    browser.open(f"{frontdoor.router.admin}/")
    wait_until(lambda: browser.text("#connection") == "live", SECONDS, "the page is live")
    wait_until(
        lambda: browser.value("!!document.querySelector('#sleep-text:not([hidden])')"), SECONDS, "buttons"
    )
    return browser


def shows(browser: Browser, text: str, selector: str = "body") -> None:
    try:
        wait_until(lambda: text in browser.text(selector), SECONDS, f"'{text}' on the page")
    finally:
        print(f"{selector} says: {browser.text(selector)}; the question: {browser.text('dialog[open]')}")


def test_everything_is_shown_and_nothing_comes_from_elsewhere(frontdoor: Frontdoor, browser: Browser) -> None:
    frontdoor.router.order("services/text/sleep", 60)
    assert frontdoor.router.chat("text").status_code == 200
    opened(browser, frontdoor)
    text = browser.text()
    for expected in (
        *("Services", "Stand-In-1B", "awake", "Hold queue", "No request waits.", "Wake times", "Events"),
        *("Copies between GPUs", "2026-08-07 10:00 UTC", "corrupt", "of an earlier boot", "Weights"),
    ):
        assert expected in text, expected
    cells = browser.value("[...document.querySelectorAll('.matrix tbody tr')].map(r => r.innerText)")
    assert [row.split()[2:] for row in cells] == [
        ["·", "corrupt", "corrupt"],
        ["corrupt", "·", "corrupt"],
        ["clean", "clean", "·"],
    ]
    assert browser.value("document.querySelectorAll('svg.plot circle').length") >= 1
    assert all(url.startswith(frontdoor.router.admin) for url in browser.requested), browser.requested
    assert browser.complaints == []


def test_what_happens_is_shown_without_reloading(frontdoor: Frontdoor, browser: Browser) -> None:
    opened(browser, frontdoor)
    browser.value("window.untouched = true")
    frontdoor.router.order("services/embed/offload", 60)
    shows(browser, "offloaded", "article:nth-of-type(2)")
    shows(browser, "was offloaded in", "#event-table")
    assert browser.value("window.untouched")


def test_the_hold_queue_is_shown(frontdoor: Frontdoor, browser: Browser) -> None:
    frontdoor.router.order("services/text/drain?deadline=1", 60)
    opened(browser, frontdoor)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(frontdoor.router.chat, "text", 120)
        wait_until(lambda: frontdoor.router.status("text")["held"] == 1, SECONDS, "a held request")
        shows(browser, "maintenance", "article")
        shows(browser, "text\t1", "section[aria-labelledby=queue]")
        proven = frontdoor.router.order("services/text/prove", 60)
        assert proven.status_code == 200, proven.text
        assert asked.result().status_code == 200
    shows(browser, "No request waits.", "section[aria-labelledby=queue]")


def test_a_button_asks_first_and_needs_the_token_once(frontdoor: Frontdoor, browser: Browser) -> None:
    opened(browser, frontdoor)
    browser.click("#sleep-text")
    shows(browser, "Put text to sleep?", "dialog")
    browser.click("#ask-no")
    assert frontdoor.router.status("text")["depth"] == "awake"

    browser.click("#sleep-text")
    browser.type("not the token")
    browser.click("#ask-yes")
    shows(browser, "Authorization", "#connection")
    assert frontdoor.router.status("text")["depth"] == "awake"

    browser.click("#sleep-text")
    browser.type(TOKEN)
    browser.click("#ask-yes")
    shows(browser, "text is sleeping.", "#connection")
    assert frontdoor.router.status("text")["depth"] == "sleeping"

    browser.click("#wake-text")
    shows(browser, "text is awake.", "#connection")
    assert frontdoor.router.status("text")["depth"] == "awake"
    stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    assert browser.value(stored) == '[{},{},""]'
    assert not any(TOKEN in url for url in browser.requested)


@pytest.mark.parametrize(
    ("order", "depth"), [("offload", "offloaded"), ("drain", "awake"), ("pin", "awake"), ("wake", "awake")]
)
def test_each_order_works_by_keyboard(frontdoor: Frontdoor, browser: Browser, order: str, depth: str) -> None:
    opened(browser, frontdoor)
    browser.tab_to(f"{order}-embed")
    browser.press("Enter")
    wait_until(lambda: browser.focused() == "ask-token", SECONDS, "the token's field has the focus")
    browser.type(TOKEN)
    browser.press("Enter")
    shows(browser, f"embed is {depth}.", "#connection")
    status = frontdoor.router.status("embed")
    assert status["depth"] == depth
    assert status["pinned"] == (order == "pin")
    assert status["conditions"] == (["maintenance"] if order == "drain" else [])


def test_focus_stays_when_the_content_changes(frontdoor: Frontdoor, browser: Browser) -> None:
    opened(browser, frontdoor)
    browser.tab_to("pin-text")
    frontdoor.router.order("services/embed/sleep", 60)
    shows(browser, "sleeping", "article:nth-of-type(2)")
    assert browser.focused() == "pin-text"


def test_escape_orders_nothing(frontdoor: Frontdoor, browser: Browser) -> None:
    opened(browser, frontdoor)
    browser.tab_to("offload-text")
    browser.press("Enter")
    wait_until(lambda: browser.value("document.getElementById('ask').open"), SECONDS, "the question")
    browser.type(TOKEN)
    browser.press("Escape")
    wait_until(lambda: not browser.value("document.getElementById('ask').open"), SECONDS, "no question")
    assert frontdoor.router.status("text")["depth"] == "awake"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_360_pixels_in_both_schemes(
    frontdoor: Frontdoor, browser: Browser, scheme: str, tmp_path: Path
) -> None:
    browser.resize(360)
    browser.prefer(scheme)
    opened(browser, frontdoor)
    assert browser.value("document.documentElement.scrollWidth") <= 360
    outside = (
        "[...document.querySelectorAll('button')].filter(b => b.getBoundingClientRect().right > 360).length"
    )
    assert browser.value(outside) == 0
    red, green, blue = (
        int(part)
        for part in browser.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")[:3]
    )
    assert (red + green + blue > 600) == (scheme == "light")
    browser.picture(tmp_path / f"{scheme}.png")


CONTRAST = """
(() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.endsWith(', 0)') && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; };
  return Math.min(...[...document.querySelectorAll('.mark, .small, p, td, dt, button:not([hidden])')]
    .filter(e => e.offsetParent).map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    return (a + .05) / (b + .05); }));
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(frontdoor: Frontdoor, browser: Browser, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG 2.2 asks (AA)."""
    browser.prefer(scheme)
    opened(browser, frontdoor)
    assert browser.value(CONTRAST) >= 4.5


def test_memory_is_shown_as_bars_with_words(frontdoor: Frontdoor, browser: Browser) -> None:
    opened(browser, frontdoor)
    memory = "section[aria-labelledby=memory]"
    shows(browser, "embed, awake: planned 9.0 GiB (asleep 2.0 GiB, estimated)", memory)
    shows(browser, "Together: planned 9.0 GiB, measured 7.5 GiB", memory)
    shows(browser, "resident memory plays the part of a GPU's", memory)
    shows(browser, "text, awake: planned 2.0 GiB, holds ", memory)
    titles = browser.value(f"[...document.querySelectorAll('{memory} svg title')].map(t => t.textContent)")
    assert len(titles) == 4
    assert all(any(word in title for word in ("planned", "measured")) for title in titles)
    frontdoor.router.order("services/embed/sleep", 60)
    shows(browser, "Together: planned 2.0 GiB, measured 954 MiB", memory)
    frontdoor.embed.fault(memory_of_others=30_000_000_000)
    shows(browser, "over plan", memory)
    frontdoor.embed.fault(memory_of_others=0)
    wait_until(lambda: "over plan" not in browser.text(memory), SECONDS, "the plan is kept again")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_fit_and_can_be_told_apart(frontdoor: Frontdoor, browser: Browser, scheme: str) -> None:
    """At least 3 to 1 against what they lie on, as WCAG 2.2 asks of pictures (AA)."""
    browser.resize(360)
    browser.prefer(scheme)
    opened(browser, frontdoor)
    shows(browser, "measured 7.5 GiB", "section[aria-labelledby=memory]")
    boxes = browser.value(BARS)
    assert len(boxes) == 4
    for box in boxes:
        assert box["width"] > 100 and box["right"] <= 360, box
        assert all(contrast >= 3 for contrast in box["contrasts"]) and box["contrasts"], box


BARS = """
(() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const contrast = (one, other) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + .05) / (b + .05); };
  const fill = (e) => getComputedStyle(e).fill;
  return [...document.querySelectorAll('svg.bar')].map(bar => {
    const box = bar.getBoundingClientRect(), ground = fill(bar.querySelector('.ground'));
    return { width: box.width, right: box.right,
      contrasts: [...bar.querySelectorAll('rect:not(.ground)')].map(e => contrast(fill(e), ground)) }; });
})()
"""


def test_it_can_be_read_without_javascript(frontdoor: Frontdoor, browser: Browser) -> None:
    browser.without_scripts()
    browser.open(f"{frontdoor.router.admin}/status")
    text = browser.text()
    assert "Stand-In-1B" in text
    assert "use vllmctl" in text
    assert "Together: planned" in text and browser.value("document.querySelectorAll('svg.bar').length") == 4
    assert browser.value("[...document.querySelectorAll('main button')].every(b => b.hidden)")


# ---- what the page's routes answer


def test_answers_carry_a_strict_policy(frontdoor: Frontdoor) -> None:
    for path in ("/status", "/status/content", "/status/page.js", "/status/page.css"):
        headers = HTTP.get(frontdoor.router.admin + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
    page = HTTP.get(f"{frontdoor.router.admin}/status").text
    assert "<script>" not in page
    assert "style=" not in page


def test_a_foreign_host_or_page_is_refused(frontdoor: Frontdoor) -> None:
    page = f"{frontdoor.router.admin}/status"
    assert HTTP.get(page, headers={"Host": "front.example"}).status_code == 403
    assert HTTP.get(page, headers={"Origin": "https://elsewhere.example"}).status_code == 403
    order = f"{frontdoor.router.admin}/admin/services/text/sleep"
    assert HTTP.post(order).status_code == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert HTTP.post(order, headers={**bearer, "Origin": "https://elsewhere.example"}).status_code == 403
    assert HTTP.post(order, headers={**bearer, "Host": "front.example"}).status_code == 403
    assert frontdoor.router.status("text")["depth"] == "awake"


@pytest.mark.parametrize("name", ["routes.py", "..%2fadmin_api.py", "page.js%00", "nothing"])
def test_no_other_file_is_served(frontdoor: Frontdoor, name: str) -> None:
    assert HTTP.get(f"{frontdoor.router.admin}/status/{name}").status_code == 404


def test_the_public_listener_has_no_status_page(frontdoor: Frontdoor) -> None:
    for path in ("/", "/status", "/status/content", "/admin/evidence", "/admin/events/recent"):
        assert HTTP.get(frontdoor.router.url + path).status_code == 404
