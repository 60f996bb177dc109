"""Goal: the dashboard for Grafana shows metrics that exist, by labels that they have, and asks of each kind what can be asked of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.metrics import CATALOGUE, Metrics

FILE = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "dcnr.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
WORDS = {"by", "le", "sum", "min", "max", "rate", "histogram_quantile"}
TARGETS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def series() -> dict[str, str]:
    """Every name that Prometheus knows of us, with the family behind it."""
    return {name + suffix: name for name, (kind, _, _) in CATALOGUE.items() for suffix in SUFFIXES[kind]}


def problems(expr: str) -> Iterator[str]:
    """What is wrong with a question."""
    known = series()
    for found in re.finditer(r"dcnr_\w+", expr):
        name = found[0]
        if name not in known:
            yield f"{name} is no metric"
            continue
        kind, labels, _ = CATALOGUE[known[name]]
        counts = kind != "gauge"
        rated = (
            expr[: found.start()].endswith("rate(")
            and re.match(r"(\{[^}]*\})?\[\$__rate_interval\]\)", expr[found.end() :]) is not None
        )
        if counts != rated:
            yield f"{name} is a {kind}: {'only its rate says something' if counts else 'it has no rate'}"
        if name.endswith("_bucket") and "le" not in re.findall(r"by \(([^)]*)\)", expr)[0].split(", "):
            yield f"{name} without le"
        if picked := re.match(r"\{([^}]*)\}", expr[found.end() :]):
            yield from (f"{name} has no label {label}" for label in re.findall(r"(\w+)[=!]", picked[1]) if label not in labels)
    families = [CATALOGUE[known[name]] for name in re.findall(r"dcnr_\w+", expr) if name in known]
    for group in re.findall(r"by \(([^)]*)\)", expr):
        allowed = {"le"} | {label for _, labels, _ in families for label in labels}
        yield from (f"no metric here has the label {label}" for label in group.split(", ") if label not in allowed)
    rest = re.sub(r'dcnr_\w+|"[^"]*"|\[\$__rate_interval\]|by \([^)]*\)|\{[^}]*\}', "", expr)
    yield from (f"{word} is unknown" for word in re.findall(r"[a-z_]+", rest) if word not in WORDS)


@pytest.mark.parametrize(("title", "expr"), TARGETS)
def test_questions_fit_the_catalogue(title: str, expr: str) -> None:
    assert list(problems(expr)) == [], title


@pytest.mark.parametrize(
    "expr",
    [
        "max(dcnr_nonsense)", "rate(dcnr_nodes[$__rate_interval])", "sum(dcnr_gateway_requests_total)", "max by (colour) (dcnr_nodes)",
        'max(dcnr_nodes{colour="red"})', "sum(rate(dcnr_gateway_requests[$__rate_interval]))", "avrg(dcnr_nodes)",
        "histogram_quantile(0.5, sum by (route) (rate(dcnr_gateway_request_seconds_bucket[$__rate_interval])))",
    ],
)  # fmt: skip
def test_wrong_questions_are_found(expr: str) -> None:
    assert list(problems(expr))


def test_the_names_are_those_that_are_shown() -> None:
    metrics = Metrics()
    metrics.answered("/v1/nodes", "GET", 200, 0.1)
    metrics.dropped("slow")
    shown = {
        line.partition("{")[0].partition(" ")[0]
        for line in metrics.rendered(None).decode().splitlines()
        if not line.startswith("#")
    }
    labelled = {name for name, (kind, labels, _) in CATALOGUE.items() if labels and kind == "gauge"}
    assert {name for name, family in series().items() if family not in labelled} <= shown


def test_panels_have_places_of_their_own_and_one_source_to_choose() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert [item["type"] for item in DASHBOARD["templating"]["list"]] == ["datasource"]
    assert all(target["datasource"]["uid"] == "${source}" for panel in DASHBOARD["panels"] for target in panel["targets"])
