"""The dashboard of the page at `/` in a real browser."""

import re
from typing import Any

import pytest

from browser import opened, say, wait_for_end
from http_server import Running, started

pytestmark = pytest.mark.long
KV = {
    "block_size": 16, "blocks": 12, "free_blocks": 7, "cached_blocks": 3,
    "cached_runs": [[5, 2], [11, 1]],
    "sequences": [
        {"request": "request-1", "choice": 0, "blocks": [0, 1, 2], "tokens": 40, "computed": 40,
         "cached": 16, "state": "running"},
        {"request": "request-2", "choice": 0, "blocks": [0, 3, 4], "tokens": 41, "computed": 41,
         "cached": 16, "state": "running"},
        {"request": "request-3", "choice": 0, "blocks": [], "tokens": 9, "computed": 0,
         "cached": 0, "state": "waiting"},
    ],
}  # fmt: skip
EXPECTED_CELLS = ["shared", "request-1", "request-1", "request-2", "request-2", "cached", "cached",
                  "free", "free", "free", "free", "cached"]  # fmt: skip
# The colours of the picture's cells, by name.
READ_CELLS = """() => {
  const context = document.getElementById("kv").getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const requests = Array.from({ length: 8 }, (_, i) => `request-${i}`);
  const names = ["block-free", "block-cached", "block-shared", ...requests];
  const known = new Map(names.map((name) => [style.getPropertyValue(`--${name}`), name]));
  return Array.from({ length: 12 }, (_, i) => {
    const parts = [...context.getImageData(14 * i + 6, 6, 1, 1).data].slice(0, 3);
    const colour = "#" + parts.map((part) => part.toString(16).padStart(2, "0")).join("");
    return known.get(colour)?.replace("block-", "");
  });
}"""


def test_the_dashboard_shows_what_the_server_reports(page: Any, server: Running) -> None:
    say(page, "Once upon a time")
    wait_for_end(page)
    total = re.search(rb"vllm:generation_tokens_total\S* (\d+)", server.get("/metrics").body)
    assert total
    tile = page.locator(".tile", has_text="Generated tokens")
    tile.get_by_text(f"{int(total[1]):,} in all").wait_for()
    assert "running" in page.locator(".tile", has_text="Requests").inner_text()
    assert re.search(r"[\d.]+ m?s", page.locator(".tile", has_text="Time per token").inner_text())
    reported = server.get("/debug/kv").json
    assert f"{reported['blocks']:,} blocks" in page.inner_text("#kv-summary")
    effective = server.get("/v1/engine/effective").json
    names = page.locator("#techniques tbody td:first-child").all_inner_texts()
    assert names == [one["feature"] for one in effective["features"]]
    row = page.locator("#techniques tr", has_text="prefix caching").first.inner_text()
    assert "on" in row and "prompt tokens found in it" in row
    assert not page.is_visible("#models-panel"), "there is one model"


def test_blocks_are_drawn_by_who_holds_them(page: Any) -> None:
    page.route("**/debug/kv*", lambda route: route.fulfill(json=KV))
    page.get_by_text("12 blocks of 16 tokens").wait_for()
    assert page.inner_text("#kv-summary").endswith("5 in use · 3 cached · 4 free")
    assert page.evaluate(READ_CELLS) == EXPECTED_CELLS
    rows = page.locator("#kv-requests tbody tr").all_inner_texts()
    assert [row.split("\t")[:3] for row in rows] == [
        ["request-1", "running", "40"], ["request-2", "running", "41"],
        ["request-3", "waiting", "9"],
    ]  # fmt: skip
    page.hover("#kv", position={"x": 3, "y": 3})
    assert page.get_attribute("#kv", "title") == "block 0: request-1, request-2"


def test_many_blocks_share_cells(page: Any) -> None:
    kv = {**KV, "blocks": 100_000, "free_blocks": 99_995}
    page.route("**/debug/kv*", lambda route: route.fulfill(json=kv))
    page.get_by_text("100,000 blocks of 16 tokens").wait_for()
    page.get_by_text("one cell is").wait_for()
    box = page.locator("#kv").bounding_box()
    assert box["height"] <= 224 and box["width"] <= 1400


def test_polling_stops_while_the_dashboard_is_hidden(page: Any) -> None:
    polls: list[str] = []
    page.on("request", lambda one: polls.append(one.url) if one.url.endswith("/metrics") else None)
    page.clock.install()
    page.reload()
    page.wait_for_selector("#techniques td", state="attached")
    page.check("input[value=chat]")
    before = len(polls)
    page.clock.run_for(10_000)
    page.evaluate("fetch('health')")
    assert len(polls) == before
    with page.expect_request("**/metrics"):
        page.check("input[value=dashboard]")


def test_the_dashboard_says_that_the_server_has_ended(browser: Any) -> None:
    with started() as ended, opened(browser, f"http://127.0.0.1:{ended.port}/") as page:
        page.wait_for_selector("#techniques td", state="attached")
        ended.stop()
        page.get_by_text("No current figures: the server does not answer").wait_for()
        say(page, "Hello")
        page.wait_for_selector(".note.error")
        assert page.inner_text(".note") == "the server does not answer"
