"""`plan capacity --replicas`: costs that are saved, limits, the report, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flyweight.bench.kernels import RunListener
from flyweight.cli.plan.capacity import CapacityOptions
from flyweight.cli.plan.replicas import ReplicaOptions
from flyweight.config import Limits, Settings
from flyweight.errors import CheckpointError, ConfigError
from flyweight.parallel.cluster import ReplicaPlan
from flyweight.planning import replica_limits
from flyweight.planning.capacity import LatencyTargets
from flyweight.planning.loop_cost import LoopCost
from flyweight.planning.replica_limits import (
    FEW,
    ITEM,
    MANY,
    MOST_SERIES,
    RECEIVED,
    REPLICA_SERIES,
    ROUTER_BYTES,
    STREAMED,
    FrontLoad,
    ReplicaLine,
    RouterCost,
    count_series,
    find_calm,
    list_limits,
    make_prompts,
    measure_key,
    measure_router,
)
from flyweight.planning.replica_plan import ReplicaQuestion, predict_replicas, read_requests
from flyweight.planning.replica_points import ReplicaPoint
from flyweight.planning.replica_report import describe_first
from flyweight.planning.replica_run import FailurePlan
from flyweight.planning.replica_search import ReplicaNumbers
from flyweight.planning.speed import make_decode
from flyweight.planning.step_cost import CostLine, StepCostModel
from flyweight.planning.timed_costs import TimedCosts, read_costs, save_costs, take_median
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.router import Router
from flyweight.server.observability.replica_metrics import collect_replicas
from flyweight.server.replicas.host import ReplicaHost
from flyweight.validation.replicas import MOST_REPLICAS

COSTS = StepCostModel(
    CostLine((1.0, 512.0), (0.01, 0.16)), CostLine((1.0,), (0.001,)), 1e-7, 1e-8, LoopCost(0, 0)
)
TIMED = TimedCosts(COSTS.compute_seconds, 0.9, 1.25, "timed")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two requests a second for 100 s; every fifth begins a conversation of five."""
    rows = [
        {"timestamp": 500 * i, "input_length": 512 * (1 + i % 5) + 100, "output_length": 320,
         "hash_ids": [i // 5 * 10 + block for block in range(1 + i % 5)]}
        for i in range(200)
    ]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    save_costs(path, "stories", COSTS, TIMED)
    return path


def ask(trace: Path, costs: Path | None, **others: Any) -> ReplicaQuestion:
    usual = ReplicaQuestion(
        ReplicaNumbers.parse("1..8"), trace, 16, 100.0, 120, "prefix", FailurePlan(3600.0, 60.0),
        LatencyTargets(0.5, 0.1), 2.0, costs,
    )  # fmt: skip
    return replace(usual, **others)


def predict(asked: ReplicaQuestion, model: str = "stories") -> dict[str, Any]:
    settings = Settings.of(model=model, threads=1)
    return predict_replicas(settings, asked, RunListener()).make_document()


def test_the_same_trace_and_costs_recommend_the_same(trace: Path, costs: Path) -> None:
    asked = ask(trace, costs, numbers=ReplicaNumbers.parse("4,8"), requests=60)
    first, second = (predict(asked)["tables"] for _ in range(2))
    assert first["replicas"] == second["replicas"] and first["losses"] == second["losses"]


def test_the_least_number_of_a_range_is_recommended(trace: Path, costs: Path) -> None:
    first = predict(ask(trace, costs))["tables"]
    rows = first["replicas"]["rows"]
    assert {1, 2, 5, 8} <= {row["replicas"] for row in rows}
    recommended, spread = first["replicas"]["notes"]
    least = int(recommended.split()[1])
    assert least > 1 and next(row["met"] for row in rows if row["replicas"] == least) >= 0.9
    assert "0.90 times as long" in spread and "1.25 times" in spread
    low, high = (int(word.rstrip(".;")) for word in spread.split() if word.rstrip(".;").isdecimal())
    assert 1 <= low <= least <= high
    loss = first["losses"]["rows"][0]
    assert 90 < loss["requests"] < 150 and loss["dollars_per_hour"] == 2.0
    limits = first["limits"]
    assert [row["limit"] for row in limits["rows"]][-2:] == [
        "series of metrics",
        "serve --replicas",
    ]
    assert limits["notes"][0] == "None of them is reached by the most replicas."
    # 100 requests a second with 20 tokens each
    assert limits["notes"][2].startswith(
        "2,000 tokens/s take up to 13 % of the API server's core if all are streamed by 5 "
        "replicas, with up to 56.6 steps/s each"
    )


def test_a_list_that_is_too_short(trace: Path, costs: Path) -> None:
    asked = ask(trace, costs, numbers=ReplicaNumbers.parse("1"), rate=400.0)
    notes = predict(asked)["tables"]["replicas"]["notes"]
    assert notes == [
        "No requested number of replicas meets TTFT 500 ms and ITL 100 ms for 90% of the requests."
    ]


def test_a_device_needs_no_timing(trace: Path) -> None:
    asked = ask(trace, None, device="h100-80", numbers=ReplicaNumbers.parse("1,2"), requests=50)
    found = predict(asked, "llama-3.2-1b")
    assert "NVIDIA H100" in found["notes"][1]
    assert "2.00 times, as at worst: 1." in found["tables"]["replicas"]["notes"][1]
    with pytest.raises(ConfigError, match="device = 'laptop-8' has no published peak"):
        predict(ask(trace, None, device="laptop-8"), "llama-3.2-1b")


# --- costs ---


def test_costs_are_read_back_as_they_were(costs: Path) -> None:
    found = read_costs(costs, "stories")
    seen = make_decode(7, 90)
    assert found.compute(seen) == COSTS.compute_seconds(seen)
    assert (found.low, found.high) == (0.9, 1.25)
    assert found.scale(2.0)(seen) == 2 * COSTS.compute_seconds(seen)
    with pytest.raises(ConfigError, match=r"costs = .*has costs of .*stories.*, not of other"):
        read_costs(costs, "other")


@pytest.mark.parametrize(
    "change",
    [
        {"layers": {"at": [2, 1], "seconds": [1, 2]}},
        {"layers": {"at": [1], "seconds": []}},
        {"head": None},
        {"pair": -1.0},
        {"position": "much"},
        {"pair": True},
        {"low": 1.5},
        {"loop": {}},
    ],
)
def test_costs_that_are_refused(costs: Path, change: dict[str, Any]) -> None:
    held = json.loads(costs.read_text(encoding="utf-8"))
    costs.write_text(json.dumps(held | change), encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no costs of steps: "):
        read_costs(costs, "stories")


def test_damaged_files_of_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with pytest.raises(ConfigError, match=r"costs .*No such file"):
        read_costs(path, "stories")
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"costs .*a JSON object was expected"):
        read_costs(path, "stories")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_costs(tmp_path / "none" / "costs.json", "stories", COSTS, TIMED)


def test_the_median_of_rounds() -> None:
    slow = replace(COSTS, layers=CostLine((1.0, 512.0), (0.03, 0.17)), pair=5e-8)
    odd = replace(COSTS, layers=CostLine((1.0, 512.0), (0.02, 0.9)), pair=3e-8)
    found = take_median([COSTS, slow, odd])
    assert found.layers.seconds == (0.02, 0.17)
    assert (found.pair, found.head) == (3e-8, COSTS.head)


# --- limits ---


LIMITS = Limits(4096, 16, 512, 32, 1000)
TOKEN = STREAMED + RECEIVED


def test_limits_by_hand() -> None:
    """1 us and 1 us a replica on average, three times as much at p99; 100 bytes a key.  Steps of
    each replica take a thousandth of the core, until there are as many as tokens.
    """
    mean, p99 = ReplicaLine(1e-6, 1e-6), ReplicaLine(3e-6, 3e-6)
    load = FrontLoad(100.0, 0.5 / (TOKEN + ITEM), 1e-3 / ITEM)
    alone = 0.5 * ITEM / (TOKEN + ITEM)  # where each token is a step
    core, choice, index, series, option = list_limits(
        RouterCost(100.0, mean, p99), LIMITS, load, 10, 10_000
    )
    assert core.now == pytest.approx(0.5 - alone + 0.01 + 0.0011)
    assert core.most == pytest.approx(0.5 + 1.0001)
    assert core.replicas in (4998, 4999)
    more = FrontLoad(100.0, 2 / (TOKEN + ITEM), 1e-3 / ITEM)  # too much, where each is a step
    first = list_limits(RouterCost(100.0, mean, p99), LIMITS, more, 10, 10_000)[0]
    assert first.replicas == int((1 - (2 - 4 * alone) - 1e-4) / 1.1e-3)
    assert (index.now, index.most, index.replicas) == (1e6, 1e9, ROUTER_BYTES // 100_000)
    assert choice.now == pytest.approx(33e-6) and choice.replicas in (332, 333)
    own = count_series(4096)
    assert (series.now, series.most) == (own + 10 * REPLICA_SERIES, own + 10_000 * REPLICA_SERIES)
    assert series.replicas == (MOST_SERIES - own) // REPLICA_SERIES and own > 100
    assert (option.most, option.allowed, option.replicas) == (10_000, MOST_REPLICAS, MOST_REPLICAS)


@pytest.mark.parametrize(
    "fixed, tokens, core, choice",
    [(1e-6, 0.5, None, None), (1e-6, 1.0, 0, None), (0.1, 0.5, 0, 0)],
)
def test_a_choice_that_does_not_grow(
    fixed: float, tokens: float, core: int | None, choice: int | None
) -> None:
    same = ReplicaLine(fixed, 0.0)
    found = list_limits(
        RouterCost(100.0, same, same), LIMITS, FrontLoad(100.0, tokens / TOKEN, 0.0), 10, 10_000
    )
    assert [one.replicas for one in found[:2]] == [core, choice]
    first = "with any number of" if core == 0 else "beyond 1,024"
    assert describe_first(found, 10_000).endswith(f" breaks first, {first} replicas.")


def test_one_more_replica_has_so_many_series() -> None:
    """What `/metrics` has of replicas, and that the rest does not grow with them."""

    def count(replicas: int) -> int:
        host = ReplicaHost(cast(Any, None), ReplicaPlan(1, 8), "prefix", print)
        for slot in range(replicas):
            host.set.add(str(slot), {"blocks": 4, "block_size": 32})
            host.set.requests[slot] = host.set.cached[slot] = 1
        return sum(len(one.samples) for one in collect_replicas(host, "model"))

    assert count(5) - count(2) == 3 * REPLICA_SERIES


def test_prompts_have_the_lengths_of_the_trace() -> None:
    found = sorted(len(one) // 4 for one in make_prompts([*range(1000, 0, -1)]))
    assert found == [*range(6, 1000, 10)]
    assert {len(one) // 4 for one in make_prompts([7])} == {7}


def test_a_choice_is_timed_with_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts tokens that keys are made of, and replicas that are chosen among."""
    clock = [0.0]

    class CountedKeys(RoutingKeys):
        def make_keys(
            self, tokens: Sequence[int], salt: str = "", adapter: str = ""
        ) -> list[bytes]:
            clock[0] += len(tokens)
            return super().make_keys(tokens, salt, adapter)

    class CountedRouter(Router):
        def begin(self, *given: Any, **more: Any) -> Any:
            clock[0] += len(self.replicas)
            return super().begin(*given, **more)

    monkeypatch.setattr(replica_limits, "RoutingKeys", CountedKeys)
    monkeypatch.setattr(replica_limits, "Router", CountedRouter)
    monkeypatch.setattr(replica_limits, "time", SimpleNamespace(thread_time=lambda: clock[0]))
    lengths = [*range(100, 200)]
    found = measure_router("prefix", 64, lengths, 32)
    assert found.mean == (pytest.approx(149.5), pytest.approx(1.0))
    assert found.p99.fixed == pytest.approx(198.01) and found.p99.each == pytest.approx(1.0)
    without = measure_router("round-robin", 64, lengths, 32)
    assert without.mean == without.p99 == (0.0, pytest.approx(1.0)) and FEW < MANY


def test_a_key_takes_its_own_bytes_and_its_place() -> None:
    assert 100 < measure_key() < 400


def test_caches_last_as_long_as_conversations_pause() -> None:
    def point(replicas: int, written: float) -> ReplicaPoint:
        return ReplicaPoint(replicas, 1, 1, 1, 1, 0, None, None, 0, 0, 0, 0, 0, 1, 0, 0, written)

    points = [point(1, 100.0), point(2, 50.0), point(4, 25.0), point(8, 0.0)]
    assert find_calm(points[:3], 1000, 20.0) == (40.0, 2)
    assert find_calm(points, 1000, 1e9) == (inf, 8)
    assert find_calm(points[:3], 1000, None) == (40.0, None)


# --- refusals ---


def test_traces_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace = 'nowhere\.csv' cannot be read: No such file"):
        read_requests(Path("nowhere.csv"))
    with pytest.raises(ConfigError, match=r"a trace is a \.csv"):
        read_requests(tmp_path / "trace.txt")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp": 0}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1: this is not a request of a trace"):
        read_requests(bad)


def test_a_model_that_is_unknown(trace: Path, costs: Path) -> None:
    with pytest.raises(CheckpointError, match="'nowhere' is neither a file or folder"):
        predict(ask(trace, costs), "nowhere")


def test_a_policy_that_is_unknown(trace: Path, costs: Path) -> None:
    with pytest.raises(ConfigError, match=r"'prefx' is no routing policy .did you mean 'prefix'"):
        predict(ask(trace, costs, routing="prefx"))


@pytest.mark.parametrize(
    "options, single, why",
    [
        (ReplicaOptions(trace="t.csv"), CapacityOptions(), "trace is of replicas; leave it out"),
        (ReplicaOptions("1,2"), CapacityOptions(), "replicas needs a trace"),
        (ReplicaOptions("1", "t.csv"), CapacityOptions(validate=True), "validate does not apply"),
        (ReplicaOptions("1", "t.csv"), CapacityOptions(output_tokens=9), "output_tokens does not"),
        (ReplicaOptions("1", "t.csv", costs="c", device="l4"), CapacityOptions(), "exclude each"),
    ],
)
def test_options_that_contradict(
    options: ReplicaOptions, single: CapacityOptions, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        options.judge(single)


def test_options_that_are_fine() -> None:
    ReplicaOptions().judge(CapacityOptions(prompt_tokens=9, seed=3))
    options = ReplicaOptions("1..4", "t.csv", mtbf=2.0, restart_time="5s")
    options.judge(CapacityOptions(seed=3))
    asked = options.ask(LatencyTargets(1.0, 1.0), 3)
    assert asked.failures == FailurePlan(7200.0, 5.0, 3)
    assert asked.numbers.numbers == (1, 2, 4)
    with pytest.raises(ConfigError, match="requests = 1 is out of range"):
        replace(options, requests=1).ask(LatencyTargets(1.0, 1.0), 3)
