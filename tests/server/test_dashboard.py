"""The Grafana dashboard, and the metrics that it and the documents name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from http_server import Running, served
from tiny_model import tiny_adapter, tiny_folder

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
METRIC = re.compile(r"\b((?:vllm|flyweight|llamacpp):[a-z_]+|(?:http|process)_[a-z_]+)")
BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with every feature that has metrics."""
    folder = tmp_path_factory.mktemp("everything")
    engine = {
        "model": str(tiny_folder(folder / "model")), "kv_cache_metrics": True,
        "adapters": {"poet": str(tiny_adapter(folder / "poet"))},
        "speculative_config": {"num_speculative_tokens": 4, "prompt_lookup_min": 1},
    }  # fmt: skip
    with served(engine) as running:
        body = {"prompt": "a b", "max_tokens": 40, "ignore_eos": True, "allowed_token_ids": [100]}
        assert running.post("/v1/completions", body).status == 200
        yield running


@pytest.fixture(scope="module")
def metrics(everything: Running) -> set[str]:
    """Names of families and of samples."""
    page = everything.get("/metrics").body.decode()
    families = list(text_string_to_metric_families(page))
    return {f.name for f in families} | {s.name for f in families for s in f.samples}


def list_expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [*found, BOARD["templating"]["list"][1]["query"]["query"]]


def test_the_dashboards_metrics_are_served(metrics: set[str]) -> None:
    for expression in list_expressions():
        named = METRIC.findall(expression)
        assert named and set(named) <= metrics, expression


SOMETIMES = {  # where there are prices, energy can be read, or there are replicas
    "flyweight:break_even_ratio",
    "flyweight:cloud_cost",
    "flyweight:energy_joules_total",
    "flyweight:machine_cost",
    "flyweight:replica_failed_requests_total",
    "flyweight:replica_lost_total",
    "flyweight:replica_retried_requests_total",
    "flyweight:replica_up",
}


@pytest.mark.parametrize("page", ["deployment.md", "observability.md", "speculative.md"])
def test_the_documents_metrics_are_served(page: str, metrics: set[str]) -> None:
    text = (DOCS / page).read_text("utf-8").partition("### Unsupported vLLM metrics")[0]
    quoted = re.findall(r"`([^`\n]+)`", text)
    named = {name for one in quoted for name in METRIC.findall(one) if not one.endswith(("*", "_"))}
    assert named and named <= metrics | SOMETIMES


def test_every_topic_of_the_page_is_on_the_dashboard() -> None:
    page = (DOCS / "deployment.md").read_text("utf-8")
    section = page.partition("## Dashboard")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w/ -]+) \| .+ \| (`.+) \|$", section, re.M)
    titles = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert [title for title, _ in rows] == titles
    listed = {name for _, names in rows for name in METRIC.findall(names)}
    drawn = {name for one in list_expressions() for name in METRIC.findall(one)}
    assert {re.sub("_bucket$", "", name) for name in drawn} == listed


def test_the_panels_of_the_dashboard() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert len(panel["description"]) > 10 and panel["targets"], panel["title"]
    for expression in list_expressions()[:-1]:
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
        by_model = all(
            name.startswith(("http_", "process_")) for name in METRIC.findall(expression)
        )
        assert by_model or 'model_name=~"$model"' in expression, expression
