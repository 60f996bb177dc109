"""``python -m benchmarks.dashboard_pictures``: pictures of the dashboard for the documents, light and dark, over `benchmarks.dashboard_network`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Page, sync_playwright

from benchmarks.browser import FLAGS, chromium
from benchmarks.dashboard_network import Network
from benchmarks.dashboard_rig import Gateway
from benchmarks.machine import ROOT

OUT: Final = ROOT / "docs" / "images"
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PANELS: Final = {
    "overview": ("", 1120),
    "nodes": ("nodes", 1240),
    "learning": ("learning", 1120),
    "contributions": ("contributions", 1120),
}
"""Route and width of the window, in pixels."""
WAIT_MS: Final = 60_000


def main(out: Path = OUT) -> None:
    """Writes ``dashboard-<panel>-<scheme>.png`` each."""
    out.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(Network(40))
    gateway.start()
    try:
        with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS)) as browser:
            for scheme in SCHEMES:
                page = browser.new_page(viewport={"width": 1120, "height": 860}, color_scheme=scheme)
                page.set_default_timeout(WAIT_MS)
                page.goto(f"{gateway.address}/")
                page.wait_for_selector("text=The model learns")
                page.wait_for_selector("[data-link=live]")
                for name, (route, width) in PANELS.items():
                    page.set_viewport_size({"width": width, "height": 860})
                    _take(page, route, out / f"dashboard-{name}-{scheme}.png")
    finally:
        gateway.close()


def _take(page: Page, route: str, path: Path) -> None:
    page.evaluate("route => { location.hash = `#/${route}` }", route)
    page.wait_for_selector({"learning": ".chart canvas", "contributions": "text=receipt"}.get(route, "h1"))
    page.wait_for_timeout(300)  # the first drawing of a chart has no event of its own
    page.screenshot(path=path)


if __name__ == "__main__":
    main()
