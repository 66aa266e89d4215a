"""The page at `/` of a server with several models, in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from browser import CHAT, fulfil, opened, read_answers, say, wait_for_end
from http_server import Running, started

pytestmark = pytest.mark.long
MODELS = ("tales", "talker")
TTFT = "vllm:time_to_first_token_seconds"
BEFORE: dict[str, dict[str, float]] = {name: {"vllm:num_requests_running": 40} for name in MODELS}
BUSY: dict[str, dict[str, float]] = {
    "tales": {
        "flyweight:model_loads_total": 1, "flyweight:engine_up": 1,
        "vllm:num_requests_running": 1, "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.25, "flyweight:evicted_blocks_total": 7,
    },
    "talker": {
        "flyweight:model_loads_total": 2, "flyweight:engine_up": 1,
        "vllm:num_requests_running": 2, "vllm:num_requests_waiting": 4,
        "vllm:kv_cache_usage_perc": 0.5, "flyweight:evicted_blocks_total": 9,
    },
}  # fmt: skip
BOUNDS = ("0.1", "10.0", "+Inf")
# What a chat shows where its looks find these states, one after another; timers end at once.
LOOKS = """
async (states) => {
  const { LoadWatch } = await import("/page/wait.js");
  const timers = [], shown = [];
  window.setTimeout = (work) => timers.push(work);
  const talker = { id: "talker", root: "talker", loading_seconds: 2 };
  const models = states.map((state) => ({ ...talker, state }));
  const api = { getJson: async () => ({ data: [models.shift()] }) };
  new LoadWatch(api, "talker", (text) => shown.push(text));
  while (timers.length && models.length) await timers.shift()();
  return shown;
}
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = chat_model.write(tmp_path_factory.mktemp("models") / "talker.gguf")
    words = "tales=stories", f"talker={path}", "--max-model-len", "512"
    with started(*words) as running:
        yield running


@pytest.fixture
def tab(browser: Any, pair: Running) -> Iterator[Any]:
    """The page with both models loaded and listed; the first is selected."""
    assert pair.post("/v1/models/load", {"model": "talker"}).status == 200
    with opened(browser, f"http://127.0.0.1:{pair.port}/") as found:
        found.wait_for_selector("#model option >> nth=1", state="attached")
        yield found


def write_metrics(
    values: dict[str, dict[str, float]], buckets: dict[str, tuple[int, ...]] | None = None
) -> str:
    """Prometheus' text: values of each model by name, and the buckets of its first tokens."""
    lines = [
        f'{name}{{engine="0",model_name="{model}"}} {value}'
        for model, found in values.items()
        for name, value in found.items()
    ]
    lines += [
        f'{TTFT}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {count}'
        for model, counts in (buckets or {}).items()
        for bound, count in zip(BOUNDS, counts, strict=True)
    ]
    return "\n".join([*lines, ""])


def show_metrics(tab: Any, *texts: str) -> list[str]:
    """The page reads the first text until the list that is returned has another."""
    shown = list(texts)
    tab.route("**/metrics", lambda route: route.fulfill(content_type="text/plain", body=shown[-1]))
    return shown


def find_tile(tab: Any, title: str) -> Any:
    return tab.locator(f'.tile[aria-label="{title}"]')


def test_a_share_of_blocks_is_that_of_the_selected_model(tab: Any) -> None:
    show_metrics(tab, write_metrics(BUSY))
    tile = find_tile(tab, "K/V blocks in use")
    tile.get_by_text("of tales · 7 evicted in all").wait_for()
    assert tile.locator(".figure").inner_text() == "25 %"
    tab.select_option("#model", "talker")
    tile.get_by_text("of talker · 9 evicted in all").wait_for()
    assert tile.locator(".figure").inner_text() == "50 %"
    requests = find_tile(tab, "Requests")
    assert requests.locator(".figure").inner_text() == "3 running"
    assert requests.locator(".caption").inner_text() == "4 waiting"


def test_latencies_are_of_the_requests_of_all_models(tab: Any) -> None:
    """Buckets are added before a percentile is taken: of four times three are below 0.1 s."""
    shown = show_metrics(tab, write_metrics(BEFORE, dict.fromkeys(MODELS, (0, 0, 0))))
    find_tile(tab, "Requests").get_by_text("80 running").wait_for()
    shown.append(write_metrics(BUSY, {"tales": (3, 3, 3), "talker": (0, 1, 1)}))
    tile = find_tile(tab, "Time to first token")
    tile.get_by_text("66.7 ms").wait_for()
    assert tile.locator(".caption").inner_text() == "median, 1 min · p95 8.02 s"


def test_a_table_lists_what_each_model_does(tab: Any) -> None:
    show_metrics(tab, write_metrics({**BUSY, "talker": {"flyweight:model_loads_total": 2}}))
    tab.locator("#models", has_text="not loaded").wait_for()
    rows = tab.locator("#models tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["tales", "loaded", "1", "0", "25 %", "0.0", "1 time"],
        ["talker", "not loaded", "", "", "", "", "2 times"],
    ]
    assert tab.locator("#models .shown td").first.inner_text() == "tales"


def test_the_dashboard_shows_that_a_model_loads(tab: Any, pair: Running) -> None:
    assert pair.post("/v1/models/unload", {"model": "talker"}).status == 200
    loads = {"flyweight:model_loads_total": 2, "flyweight:model_loading_seconds": 12.4}
    show_metrics(tab, write_metrics({**BUSY, "talker": loads}))
    tab.select_option("#model", "talker")
    tab.locator("#unloaded", has_text="talker is loading, 12 s.").wait_for()
    row = tab.locator("#models tbody tr").nth(1).inner_text()
    assert row.split("\t") == ["talker", "loading, 12 s", "", "", "", "", "2 times"]


def test_a_chat_shows_that_its_model_loads(tab: Any, pair: Running) -> None:
    models = pair.get("/v1/models").json
    models["data"][1] |= {"state": "loading", "loading_seconds": 12.4}
    chats: list[Any] = []
    tab.route("**/v1/models", lambda route: route.fulfill(json=models))
    tab.route(CHAT, lambda route: chats.append(route))
    tab.evaluate("document.getElementById('model').value = 'talker'")
    say(tab, "Hello")
    tab.locator(".assistant .wait", has_text="loading talker, 12 s").wait_for()
    assert read_answers(tab) == [""]
    models["data"][1] |= {"state": "loaded", "loading_seconds": None}
    tab.locator(".assistant .wait").wait_for(state="hidden")
    fulfil(chats[0], "Hi")
    wait_for_end(tab)
    assert read_answers(tab) == ["Hi"] and not tab.is_visible(".assistant .wait")


def test_a_chat_looks_until_its_model_is_loaded(browser: Any, pair: Running) -> None:
    """In a tab that has no other timers."""
    with opened(browser, f"http://127.0.0.1:{pair.port}/page/wait.js") as tab:
        shown = tab.evaluate(LOOKS, ["unloaded", "loading", "loaded", "loading"])
        assert shown == ["", "loading talker, 2 s", ""]
        assert tab.evaluate(LOOKS, ["loaded", "loading"]) == [""]


def test_an_unloaded_model_is_shown_as_such_and_stays_so(tab: Any, pair: Running) -> None:
    tab.wait_for_selector("#techniques td", state="visible")
    assert pair.post("/v1/models/unload", {"model": "talker"}).status == 200
    tab.select_option("#model", "talker")
    tab.wait_for_selector("#unloaded", state="visible")
    expected = "talker is not loaded. The next request to it loads it."
    assert tab.inner_text("#unloaded") == expected
    assert not tab.is_visible("#techniques") and not tab.is_visible("#trouble")
    assert find_tile(tab, "K/V blocks in use").locator(".figure").inner_text() == "–"
    assert pair.get("/v1/models/talker").json["state"] == "unloaded"
    pair.post("/v1/models/load", {"model": "talker"})
    tab.wait_for_selector("#techniques td", state="visible")
    assert not tab.is_visible("#unloaded")


def test_counters_of_two_models_are_not_compared(tab: Any, pair: Running) -> None:
    """A model with a larger counter than the one shown before has done nothing meanwhile."""
    reply = pair.get("/v1/engine/effective?model=tales").json
    features = {one["feature"]: one for one in reply["features"]}
    caching = features["prefix caching"]

    def answer(route: Any) -> None:
        caching["counter"]["value"] = 500 if "talker" in route.request.url else 5
        route.fulfill(json=reply)

    tab.route("**/v1/engine/effective*", answer)
    row = tab.locator("#techniques tr", has_text="prefix caching").first
    row.get_by_text("5 prompt tokens found in it").wait_for()
    tab.select_option("#model", "talker")
    row.get_by_text("500 prompt tokens found in it").wait_for()
    assert "idle" in row.inner_text() and "active" not in row.inner_text()
