"""The dashboard with a thousand machines, in a real browser: the first view, an event on its way to the page, sorting and scrolling, bytes."""

from __future__ import annotations

import gzip
import time
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.browser import FLAGS, chromium
from benchmarks.dashboard_network import Network, node_id
from benchmarks.dashboard_rig import Gateway
from benchmarks.result import Options, Result, Row, Target, largest, median, median_of, rounded
from gateway.pages import FOLDER

PNODES: Final = 1000
WAIT_MS: Final = 60_000
OBSERVE: Final = """
window.tasks = [];
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.tasks.push(one.duration); }).observe({ type: "longtask" });
"""
FIRST_PAINT: Final = """() => new Promise((tell) => {
  const look = (list) => list.getEntriesByName('first-contentful-paint').forEach((one) => tell(one.startTime));
  new PerformanceObserver(look).observe({ type: 'paint', buffered: true });
})"""
LONGEST: Final = "Math.max(0, ...window.tasks)"
SCROLL: Final = """async () => {
  const box = document.querySelector('.window');
  for (let step = 1; step <= 60; step += 1) {
    box.scrollTop = box.scrollHeight * step / 60;
    await new Promise(requestAnimationFrame);
  }
}"""


def run(options: Options) -> Result:
    """A fresh page per round; one gateway and one browser."""
    num = 50 if options.quick else PNODES
    result = Result("dashboard", "The dashboard in a browser", {"pnodes": num, "rounds": options.rounds})
    gateway = Gateway(Network(num))
    gateway.start()
    try:
        with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS)) as browser:
            for number in range(options.rounds):
                result.rounds.append({"round": number, **measure(browser, gateway, number)})
    finally:
        gateway.close()
    conclude(result)
    return result


def measure(browser: Browser, gateway: Gateway, number: int) -> Row:
    """One page from its first view to its last row."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, service_workers="block")
    context.add_init_script(OBSERVE)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    began = time.monotonic()
    page.goto(f"{gateway.address}/")
    page.wait_for_selector("text=The model learns")
    row: Row = {"first_paint_s": page.evaluate(FIRST_PAINT) / 1000, "headline_s": time.monotonic() - began}
    page.wait_for_selector("[data-link=live]")
    began = time.monotonic()
    gateway.network.say("replica_relocated", node_id(1), f"moved in round {number}")
    page.wait_for_selector(f"text=moved in round {number}")
    row["event_s"] = time.monotonic() - began
    row |= {"sort_longest_task_ms": _sorting(page, len(gateway.network.nodes)), "scroll_longest_task_ms": _scrolling(page)}
    row["compressed_bytes"] = sum(
        len(gzip.compress(path.read_bytes())) for path in FOLDER.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg")
    )
    context.close()
    return {key: round(value, 4) for key, value in row.items()}


def _sorting(page: Page, num_rows: int) -> Any:
    page.evaluate("location.hash = '#/nodes'")
    page.wait_for_selector(f"text={num_rows} of {num_rows}")
    page.evaluate("window.tasks.length = 0")
    for name in ("Device", "Device", "VNodes", "Machine", "State"):
        page.get_by_role("button", name=name).click()
        expect(page.locator("th[aria-sort=ascending], th[aria-sort=descending]")).to_contain_text(name)
    return page.evaluate(LONGEST)


def _scrolling(page: Page) -> Any:
    page.evaluate("window.tasks.length = 0")
    page.evaluate(SCROLL)
    return page.evaluate(LONGEST)


def conclude(result: Result) -> None:
    """Medians and targets from the rounds alone."""
    result.medians = {key: rounded(median_of(result.rounds, key)) for key in result.rounds[0] if key != "round"}
    longest = median(max(row["sort_longest_task_ms"], row["scroll_longest_task_ms"]) for row in result.rounds)
    result.targets = [
        Target("first view", result.medians["first_paint_s"], 1.0, "s", at_least=False),
        Target("an event is shown, slowest round", largest(row["event_s"] for row in result.rounds), 2.0, "s", at_least=False),
        Target(
            "longest task while sorting and scrolling, median round",
            longest,
            50.0,
            "ms",
            at_least=False,
        ),
        Target("all files compressed", result.medians["compressed_bytes"], 150_000.0, "bytes", at_least=False),
    ]
    result.notes = ["Browsers tell of tasks from 50 ms on; 0: there was none in that round."]
