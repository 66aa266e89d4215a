"""The energy and the cost of requests, and of the machine against a cloud."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyweight.build import build
from flyweight.config import Settings
from flyweight.driver.progress import CallProgress
from flyweight.plan.energy import EnergyMeter
from flyweight.server import pipe
from flyweight.server.observability.cost_metrics import ServedHistory, ServedTokens, collect_costs
from flyweight.server.observability.costs import MachineCosts, describe_cost
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.settings import ServerSettings
from flyweight.server.worker.loop import READ, Worker
from flyweight.server.worker.metering import RequestMeter
from flyweight.types import Request, SamplingParams, StepUse
from http_server import Running, started

PRICED = ServerSettings(
    price_per_kwh=0.5, price_per_hour=7.2, price_input=1.0, price_output=4.0
)  # fmt: skip


def write_joules(root: Path, joules: float) -> None:
    zone = root / "intel-rapl:0"
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(str(int(joules * 1e6)))
    (zone / "max_energy_range_uj").write_text(str(1000 * 10**6))


def events(*ids: str) -> list[pipe.StepEvents]:
    return [pipe.StepEvents(id, 0, (5,)) for id in ids]


def run_step(meter: RequestMeter, tokens: dict[str, int], seconds: float) -> dict[str, Any]:
    """What a step reports of each request that it computed so many tokens of."""
    meter.note([(id, 0, 0, count) for id, count in tokens.items()])
    meter.end(seconds)
    news = events(*tokens)
    meter.report(news)
    return {one.id: one.use for one in news}


def test_a_step_is_shared_by_tokens(tmp_path: Path) -> None:
    write_joules(tmp_path, 100)
    meter = RequestMeter(tmp_path)
    meter.add("a")
    meter.begin()
    write_joules(tmp_path, 108)
    assert run_step(meter, {"a": 3, "b": 1}, 2.0) == {"a": (1.5, 6.0), "b": None}
    write_joules(tmp_path, 500)  # between steps: it is of no request
    meter.add("b")
    meter.begin()
    write_joules(tmp_path, 504)
    assert run_step(meter, {"a": 1, "b": 1}, 1.0) == {"a": (2.0, 8.0), "b": (0.5, 2.0)}
    meter.remove("a")
    meter.begin()
    write_joules(tmp_path, 505)
    assert run_step(meter, {"a": 1, "b": 3}, 1.0) == {"a": None, "b": (1.25, 2.75)}


def test_energy_that_cannot_be_read_is_never_0(tmp_path: Path) -> None:
    write_joules(tmp_path, 100)
    for meter in (
        RequestMeter(tmp_path / "none"),
        RequestMeter(tmp_path),  # its counter stands still: the step was too short for it
        RequestMeter(tmp_path, reads=False),
    ):
        meter.add("a")
        meter.begin()
        assert run_step(meter, {"a": 2}, 1.0) == {"a": (1.0, None)}


def test_a_step_without_measured_requests_reads_nothing(tmp_path: Path) -> None:
    meter = RequestMeter(tmp_path)
    meter.begin()
    assert run_step(meter, {"b": 2}, 1.0) == {"b": None}
    assert meter._energy is None


def test_shares_of_requests_are_all_of_the_engines_steps() -> None:
    """Of prompts, answers and steps that they share."""
    patience = CallProgress()
    loaded = build(Settings.of(max_num_seqs=4, threads=1), patience)
    ours, theirs = socket.socketpair()
    worker = Worker(theirs).host(0, loaded, pipe.EngineSetup({}, 0.2))
    for id, length, most in (("a", 40, 3), ("b", 20, 6)):
        request = Request(
            id, tuple(range(20, 20 + length)), SamplingParams(), max_tokens=most, measure=True
        )
        worker.take(pipe.Submit.of(request))
    frames, uses = pipe.PipeFrames(pipe.ToFront), dict[str, StepUse]()
    while worker.engine.busy:
        worker.run_step()
        for _, message in frames.push(ours.recv(READ)):
            for news in message.news:
                found = news.to_event().use
                assert found is not None
                assert news.id not in uses or found.seconds > uses[news.id].seconds
                uses[news.id] = found
    patience.stop()
    ours.close()
    theirs.close()
    total = uses["a"] + uses["b"]
    took = sum(step["seconds"] for step in worker.steps)
    assert total.seconds == pytest.approx(took, rel=1e-9)
    assert worker.meter._seconds == {}, "both were forgotten"


def test_costs_of_a_request() -> None:
    assert describe_cost(PRICED, StepUse(0.5, 7200.0), 30, 5) == {
        "step_seconds": 0.5, "energy_joules": 7200.0, "machine_cost": 0.002, "cloud_cost": 5e-05,
    }  # fmt: skip


def test_what_is_not_known_is_unavailable() -> None:
    def costs(joules: float | None, **prices: float) -> list[Any]:
        found = describe_cost(ServerSettings(**prices), StepUse(0.5, joules), 30, 5)  # type: ignore[arg-type]
        return [found[name] for name in ("energy_joules", "machine_cost", "cloud_cost")]

    none = "unavailable"
    assert costs(None) == [none, none, none]
    assert costs(3.0) == [3.0, none, none]
    assert costs(None, price_per_kwh=1.0, price_per_hour=1.0) == [none, none, none]
    assert costs(None, price_per_hour=7.2) == [none, 0.001, none]
    assert costs(3600.0, price_per_kwh=2.0) == [3600.0, 0.002, none]
    assert costs(None, price_output=2.0) == [none, none, 1e-05]


def test_shares_of_prompts_are_added() -> None:
    assert StepUse(1.0, 2.0) + StepUse(0.5, 1.0) == StepUse(1.5, 3.0)
    assert StepUse(1.0, 2.0) + StepUse(0.5, None) == StepUse(1.5, None)


def read_metrics(costs: MachineCosts, *served: ServedTokens) -> dict[str, list[float]]:
    families = collect_costs(costs, served)
    return {one.name: [sample.value for sample in one.samples] for one in families}


def test_the_machine_against_a_cloud(tmp_path: Path) -> None:
    write_joules(tmp_path, 990)
    times = iter((100.0, 1900.0, 3700.0))
    costs = MachineCosts(PRICED, tmp_path, lambda: next(times))
    write_joules(tmp_path, 20)  # the counter began again after 1000
    served = ServedTokens("a", 2_000_000, 500_000), ServedTokens("b", 0, 0)
    assert read_metrics(costs, *served) == {
        "flyweight:energy_joules": [30.0],
        "flyweight:machine_cost": [pytest.approx(3.6 + 0.5 * 30 / 3.6e6)],
        "flyweight:cloud_cost": [4.0, 0.0],
        "flyweight:break_even_ratio": [pytest.approx(4.0 / (3.6 + 0.5 * 30 / 3.6e6))],
    }
    write_joules(tmp_path, 21)
    assert read_metrics(costs, *served)["flyweight:energy_joules"] == [31.0]


def test_there_are_no_metrics_of_what_is_not_known(tmp_path: Path) -> None:
    served = ServedTokens("a", 2_000_000, 500_000)
    assert read_metrics(MachineCosts(ServerSettings(), tmp_path), served) == {}
    unread = ServerSettings(price_per_kwh=0.5)
    assert read_metrics(MachineCosts(unread, tmp_path), served) == {}
    alone = ServerSettings(price_per_hour=7.2), ServerSettings(price_input=1.0)
    names = [list(read_metrics(MachineCosts(one, tmp_path), served)) for one in alone]
    assert names == [["flyweight:machine_cost"], ["flyweight:cloud_cost"]]


def test_models_that_are_served_no_more_keep_their_tokens() -> None:
    history, first, second = ServedHistory(), ServerCounters(512), ServerCounters(512)
    first.prompt_tokens = second.generation_tokens = 5
    assert history.note([("a", first), ("b", None)]) == [("a", 5, 0), ("b", 0, 0)]
    first.prompt_tokens = 7  # of requests that it ended before it was removed
    assert history.note([("b", second)]) == [("b", 0, 5), ("a", 7, 0)]
    again = ServerCounters(512)
    assert history.note([("a", None)]) == [("a", 7, 0), ("b", 0, 5)]
    again.prompt_tokens = 1
    for _ in range(2):
        assert history.note([("a", again)]) == [("a", 8, 0), ("b", 0, 5)]


@pytest.fixture(scope="module")
def priced() -> Iterator[Running]:
    words = ("--price-per-hour", "3600", "--price-input", "1e6", "--price-output", "2e6")
    with started(*words) as server:
        yield server


def test_a_reply_has_its_cost_on_request(priced: Running) -> None:
    body = {"prompt": ["Once upon a time", "One day"], "max_tokens": 5, "n": 2, "ignore_eos": True}
    got = priced.post("/v1/completions", {**body, "return_cost": True}).json
    cost, usage = got["cost"], got["usage"]
    assert set(cost) == {"step_seconds", "energy_joules", "machine_cost", "cloud_cost"}
    assert cost["cloud_cost"] == usage["prompt_tokens"] + 2 * 20
    assert cost["step_seconds"] > 0
    assert cost["machine_cost"] == pytest.approx(cost["step_seconds"], abs=2e-6)
    if EnergyMeter().readable:
        assert cost["energy_joules"] == "unavailable" or cost["energy_joules"] > 0
    else:
        assert cost["energy_joules"] == "unavailable"
    assert "cost" not in priced.post("/v1/completions", body).json
    wrong = priced.post("/v1/completions", {**body, "return_cost": "cheap"})
    assert wrong.status == 400 and wrong.json["error"]["param"] == "return_cost"


def test_metrics_compare_the_machine_with_a_cloud(priced: Running) -> None:
    priced.post("/v1/completions", {"prompt": "One day", "max_tokens": 5})
    page = priced.get("/metrics").body.decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels == {"model_name": "stories", "engine": "0"}
    }
    tokens = found["vllm:prompt_tokens_total"] + 2 * found["vllm:generation_tokens_total"]
    assert found["flyweight:cloud_cost"] == tokens > 0
    spent = found["flyweight:machine_cost"]
    assert spent > 0, "a second costs 1"
    assert found["flyweight:break_even_ratio"] == pytest.approx(tokens / spent)
