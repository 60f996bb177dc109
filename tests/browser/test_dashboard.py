"""Goal: in a real browser the dashboard shows the network as it is, follows it live, survives its gateway, and can be used by everyone.

One browser for all; the network is `benchmarks.dashboard_network.Network`, the pages and headers are the gateway's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from benchmarks.browser import FLAGS, chromium
from benchmarks.dashboard_network import TOKEN, Network, node_id
from benchmarks.dashboard_rig import Gateway

HERE = Path(__file__).parent
ROUTES = ("", "nodes", "learning", "events", "help", "contributions", "gateways", "here", f"nodes/{node_id(1)}")
LIMIT_MS = 30_000
"""Of every wait: a slow machine takes its time."""
CABLES = "net::ERR_NETWORK_CHANGED"
"""What Chromium answers itself when this computer gets or loses a network interface, as it does where tests beside these make machines of their own. The
page asks again.
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS)) as started:
        yield started


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Shared by tests that only look."""
    started = Gateway(Network(hole=True))
    started.start()
    yield started
    started.close()


@pytest.fixture
def own_gateway() -> Iterator[Gateway]:
    started = Gateway(Network())
    started.start()
    yield started
    started.close()


@dataclass(slots=True)
class Sight:
    """A page with what the browser complained of and what it asked others for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


Scheme = Literal["light", "dark"]


def opened(browser: Browser, gateway: Gateway, *, route: str = "", width: int = 1280, scheme: Scheme = "light") -> Sight:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    sight = Sight(context.new_page())

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and CABLES not in message.text:
            sight.complaints.append(message.text)

    def watch(request: Request) -> None:
        if not request.url.startswith((f"{gateway.address}/", "data:")):
            sight.elsewhere.append(request.url)

    sight.page.set_default_timeout(LIMIT_MS)
    sight.page.on("console", hear)
    sight.page.on("pageerror", lambda error: sight.complaints.append(str(error)))
    sight.page.on("request", watch)
    sight.page.goto(f"{gateway.address}/#/{route}")
    return sight


def seen(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.get_by_text(text).first).to_be_visible(timeout=LIMIT_MS)


def until(page: Page, expression: str) -> None:
    """Waits for it from outside: the page's policy lets no text become a script there."""
    for _ in range(LIMIT_MS // 100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never true: {expression}")


def test_the_first_view_says_how_it_is(browser: Browser, gateway: Gateway) -> None:
    sight = opened(browser, gateway)
    page = sight.page
    expect(page.locator("h1")).to_have_text(re.compile(r"trouble: 1 VNode of 5 has no machine: dense1\."), timeout=LIMIT_MS)
    figures = page.locator(".figures")
    expect(figures).to_contain_text("8 active")
    expect(figures).to_contain_text("1 quarantined")
    expect(figures).to_contain_text("2 of 3 orchestrators. ▲ They disagree")
    expect(figures).to_contain_text(f"They disagree: {node_id(10_000)[:10]} says {node_id(10_000)[:10]} decides, epoch 4")
    expect(figures).to_contain_text(f"▲ silent: {node_id(10_002)[:10]}")
    expect(figures.locator(".asof")).to_have_count(4)
    hole = page.get_by_role("button", name=re.compile("dense1.*hole.*0 of 1 replica"))
    expect(hole).to_contain_text("✕")
    hole.hover()
    expect(page.locator(".detail")).to_contain_text("it needs 6.0 GiB of free memory")
    assert sight.complaints == []
    assert sight.elsewhere == []
    page.context.close()


def test_a_job_on_which_nobody_decides_is_the_first_thing_that_is_said(browser: Browser, own_gateway: Gateway) -> None:
    own_gateway.network.held_up = "nobody decides on digits: this orchestrator lacks component mix"
    page = opened(browser, own_gateway).page
    expect(page.locator("h1")).to_have_text(
        re.compile(r"trouble: Training does not go on: nobody decides on digits: .*mix\."), timeout=LIMIT_MS
    )
    page.context.close()


def test_events_are_shown_as_they_happen(browser: Browser, own_gateway: Gateway) -> None:
    sight = opened(browser, own_gateway)
    page = sight.page
    expect(page.locator("[data-link=live]")).to_be_visible(timeout=LIMIT_MS)
    own_gateway.network.say("replica_relocated", node_id(2), "its owner closed the lid", vnode="dense2")
    seen(page, "its owner closed the lid")
    page.goto(f"{own_gateway.address}/#/events")
    page.get_by_label("About").select_option("relocated")
    expect(page.locator(".events li")).to_have_count(3, timeout=LIMIT_MS)
    page.get_by_label("With").fill("lid")
    expect(page.locator(".events li")).to_have_count(1, timeout=LIMIT_MS)
    assert sight.complaints == []
    page.context.close()


def test_words_of_strangers_stay_words(browser: Browser, own_gateway: Gateway) -> None:
    own_gateway.network.say(
        "node_left", "<b class=evil>x</b>", "<img class=evil src=nothing onerror=document.title='evil'>", why="<i class=evil>"
    )
    sight = opened(browser, own_gateway, route="events")
    seen(sight.page, "<img class=evil src=nothing")
    assert sight.page.locator(".evil").count() == 0
    assert sight.page.title() == "Events · DCNR"
    assert sight.complaints == []
    sight.page.context.close()


def test_a_gateway_that_goes_away_and_comes_back(browser: Browser, own_gateway: Gateway) -> None:
    page = opened(browser, own_gateway).page
    expect(page.locator("[data-link=live]")).to_be_visible(timeout=LIMIT_MS)
    expect(page.locator("html[data-copy=kept]")).to_be_attached(timeout=LIMIT_MS)
    until(page, "localStorage.getItem('dcnr.known.1')?.includes('conv1')")
    own_gateway.stop()
    expect(page.locator("[data-link=lost]")).to_contain_text("reconnecting", timeout=LIMIT_MS)
    expect(page.locator(".strip button")).to_have_count(5)
    page.reload()
    expect(page.locator("[data-link=lost]")).to_contain_text(re.compile(r"as of \d+ \w+ ago"), timeout=LIMIT_MS)
    expect(page.locator(".strip button")).to_have_count(5)
    own_gateway.network.say("node_attached", node_id(5), "back in the evening")
    own_gateway.start()
    expect(page.locator("[data-link=live]")).to_be_visible(timeout=LIMIT_MS)
    seen(page, "back in the evening")
    page.context.close()


def test_a_thousand_machines(browser: Browser) -> None:
    """Sorted and filtered whole, drawn in part."""
    gateway = Gateway(Network(1000))
    gateway.start()
    sight = opened(browser, gateway, route="nodes")
    page = sight.page
    seen(page, "1003 of 1003")
    rows = page.locator(".window tbody tr:not(.spacer)")
    assert rows.count() < 60
    page.get_by_role("button", name="Device").click()
    expect(page.locator("th.device")).to_have_attribute("aria-sort", "ascending")
    expect(rows.first.locator(".device")).to_contain_text("415 GFLOP/s", timeout=LIMIT_MS)
    page.get_by_role("button", name="Device").click()
    expect(rows.first.locator(".device")).to_contain_text("orchestrator", timeout=LIMIT_MS)
    page.get_by_role("button", name="Load").click()
    expect(rows.first.locator(".load")).to_have_text(re.compile("100 %"), timeout=LIMIT_MS)
    expect(rows.first.get_by_role("meter", name=re.compile(r"^100 % of \d cores? in use"))).to_be_visible(timeout=LIMIT_MS)
    page.get_by_role("button", name="Load").click()
    expect(rows.first.locator(".load")).to_have_text("—", timeout=LIMIT_MS)
    page.locator(".window").evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(page.locator("tr[aria-rowindex='1004']")).to_be_visible(timeout=LIMIT_MS)
    assert rows.count() < 60
    page.get_by_label("State").select_option("quarantined")
    seen(page, "50 of 1003")
    page.get_by_label("With").fill("cuda")
    seen(page, re.compile(r"^\d+ of 1003$"))
    expect(rows.first.locator(".device")).to_contain_text("cuda", timeout=LIMIT_MS)
    assert sight.complaints == []
    page.context.close()
    gateway.close()


def test_a_name_stands_beside_the_id_and_the_score_with_its_parts(browser: Browser, gateway: Gateway) -> None:
    sight = opened(browser, gateway, route="nodes")
    page = sight.page
    page.get_by_label("With").fill("garden shed")
    row = page.locator(".window tbody tr:not(.spacer)")
    expect(row).to_have_count(1, timeout=LIMIT_MS)
    expect(row.locator("td.id")).to_have_text(re.compile(f"garden shed {node_id(2)[:10]}"))
    expect(row.locator("td.score")).to_have_text(re.compile(r"93 C 0\.95 R 0\.97 k 2"))
    page.get_by_label("With").fill("")
    page.get_by_role("button", name="Score").click()
    expect(page.locator("th.score")).to_have_attribute("aria-sort", "ascending")
    expect(row.first.locator("td.score b")).to_have_text(re.compile(r"^9\d$"), timeout=LIMIT_MS)
    page.goto(f"{gateway.address}/#/nodes/{node_id(3)}")
    seen(page, re.compile(r"33 %: 1.33 of 4 cores, by VNodes alone, as it says"))
    page.goto(f"{gateway.address}/#/nodes/{node_id(9)}")
    audits = page.get_by_role("region", name="Last audits").locator("tbody tr")
    expect(audits).to_have_count(4, timeout=LIMIT_MS)
    expect(audits.first).to_have_text(re.compile("■ failed.*conv2.*64.*cecececece"))
    assert sight.complaints == []
    page.context.close()


def test_what_owners_are_credited_with(browser: Browser, gateway: Gateway) -> None:
    sight = opened(browser, gateway, route="contributions")
    owned = {number: f"{node_id(5000 + number // 3)[:10]}" for number in (1, 3)}
    rows = sight.page.get_by_role("region", name="By owner").locator("tbody tr")
    expect(rows).to_have_text([re.compile(f"{owned[1]}.*1.*750"), re.compile(f"{owned[3]}.*1.*450")], timeout=LIMIT_MS)
    first = sight.page.get_by_role("region", name="Credited").locator("tbody tr").first
    expect(first.locator("th")).to_have_text(re.compile(f"Ada's laptop {node_id(0)[:10]}"))
    expect(first.get_by_role("link", name="Receipt of")).to_have_attribute("href", f"v1/ledger/receipts/{node_id(0)}")
    assert sight.complaints == []
    sight.page.context.close()


def test_the_own_machine_obeys_whoever_has_the_token(browser: Browser, own_gateway: Gateway) -> None:
    """The token leaves the address at once and survives a reload; without it the page says how to get one; ending takes two steps."""
    stranger = opened(browser, own_gateway, route="here")
    seen(stranger.page, "this needs the local token")
    assert stranger.page.get_by_role("button", name="Pause").count() == 0
    stranger.page.context.close()
    sight = opened(browser, own_gateway, route=f"here/{TOKEN}")
    page = sight.page
    seen(page, "trains 2 VNodes")
    assert TOKEN not in page.url
    page.reload()
    seen(page, "1,720 batches learned")
    for text in (
        "round trip 12 ms",
        "37 % of the lent cores",
        "42.1 h, 123 h off, asleep or not known, 3 h paused",
        "12,345 batches, by its own count; took part in 7 answers",
        "640 batches cleared, 25.0 % of all; 32 wait for audits, 0 taken back",
        "it was paused for 3 h 0 min: `pnode pause --for 2h` ends by itself",
        "memory mb",
        "flag --memory-mb",
        "worker: <b>ready</b>",
        "its control stream is open",
        "answers, 4 questions so far",
        "900 cleared batches, 30.0 % of all",
        "Ada's laptop",
    ):
        seen(page, text)
    page.get_by_label("Pause").first.select_option("7200")
    page.get_by_role("button", name="Pause", exact=True).click()
    seen(page, "paused by its owner")
    page.get_by_role("button", name="Resume").click()
    seen(page, "trains 2 VNodes")
    page.get_by_role("button", name="Finish").click()
    assert not any(one.startswith("finish") for one in own_gateway.asked)
    page.get_by_role("button", name="No, go on").click()
    page.get_by_role("button", name="Finish").click()
    page.get_by_role("button", name="Yes, hand over and stop").click()
    seen(page, "It hands over and ends, in at most 5 s.")
    done = [one for one in own_gateway.asked if one.startswith(("pause", "resume", "finish"))]
    assert done == ['pause {"for_s":7200}', "resume {}", 'finish {"hand_over":true}']
    own_gateway.stop()
    seen(page, re.compile("What is below is .* old"))
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_disabled(timeout=LIMIT_MS)
    assert sight.elsewhere == []
    page.context.close()


def test_the_keyboard_reaches_everything(browser: Browser, gateway: Gateway) -> None:
    page = opened(browser, gateway).page
    expect(page.locator(".strip button")).to_have_count(5, timeout=LIMIT_MS)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".strip button").nth(0)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".strip button").nth(1)).to_be_focused()
    expect(page.locator(".detail h3")).to_contain_text("conv2")
    page.keyboard.press("End")
    expect(page.locator(".detail h3")).to_contain_text("readout")
    page.keyboard.press("Tab")
    expect(page.locator(".detail a").first).to_be_focused()
    page.keyboard.press("Enter")
    seen(page, "All machines")
    seen(page, "its beats come in time")
    seen(page, "300 batches cleared")
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1920, "light")])
def test_everyone_can_use_every_panel(browser: Browser, gateway: Gateway, width: int, scheme: Scheme) -> None:
    """No rule of axe is broken, nothing is wider than the screen, the policy of contents is kept."""
    sight = opened(browser, gateway, width=width, scheme=scheme)
    page = sight.page
    expect(page.locator(".strip button")).to_have_count(5, timeout=LIMIT_MS)
    # as the browser's own word, not as a script of the page: the policy stays in force for the page
    page.evaluate((HERE / "vendor" / "axe.min.js").read_text())
    page.evaluate("token => sessionStorage.setItem('dcnr.here.1', token)", TOKEN)
    wrong: dict[str, Any] = {}
    for route in ROUTES:
        page.evaluate("route => { location.hash = `#/${route}` }", route)
        expect(page.locator("h1").first).to_be_visible(timeout=LIMIT_MS)
        if route == "learning":
            expect(page.locator(".chart canvas").first).to_be_visible(timeout=LIMIT_MS)
        if route == "here":
            seen(page, "trains 2 VNodes")
        found = page.evaluate("async () => (await axe.run()).violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`)")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        if found or wide:
            wrong[route] = [*found, *(["wider than the screen"] if wide else [])]
    assert wrong == {}
    assert sight.complaints == []
    page.context.close()
