"""Advice: rules on facts made by hand, and the facts themselves on small models."""

from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import ConfigError
from flyweight.plan.machine import Machine
from flyweight.plan.roofline import MachineLimits, StepShape
from flyweight.planning import rules
from flyweight.planning.advice import MATRIX, check_use_case, report_advice
from flyweight.planning.advice_facts import (
    BATCHES,
    DOCUMENTS,
    AdviceFacts,
    gather_facts,
    make_checked,
)
from flyweight.planning.outline import outline_model
from flyweight.planning.rules import RULES, USE_CASES

MODELS = Path(__file__).parents[1] / "data" / "models"
# Of a step of 4 bits, by sequences: twice the tokens up to 8, hardly more beyond.
LIMITS = MachineLimits(1e11, 1e13, 5e12, 1e12)
STEPS = {1: 0.10, 2: 0.11, 4: 0.12, 8: 0.14, 16: 0.26, 32: 0.50}


def make_facts(total: int = 32 * 10**9, **changed: object) -> AdviceFacts:
    decode = {(4, n): seconds for n, seconds in STEPS.items()} | {(8, 1): 0.15, (16, 1): 0.30}
    given = {
        "decode": decode, "checked": {1: 0.12, 16: 0.52}, "prefill": {10: 0.5, 40: 1.0},
        "ways": {"greedy": 1.0, "top-k": 1.05, "beam": 1.5},
    } | changed  # fmt: skip
    return AdviceFacts(
        "model", "by hand", 7 * 10**9, Machine(8, total, total), LIMITS,
        **given,  # type: ignore[arg-type]
    )  # fmt: skip


def test_int4_is_advised_where_it_is_twice_as_fast() -> None:
    assert rules.check_int4(make_facts()).agrees  # 0.30 / 0.10
    slow = make_facts(decode={(4, 1): 0.2, (16, 1): 0.3})
    assert rules.check_int4(slow).agrees is False
    assert "1.5 times" in rules.check_int4(slow).here


def test_batching_compares_tokens_a_second() -> None:
    found = rules.check_batching(make_facts())
    assert found.agrees and f"{16 / 0.26 * 0.10:.3g} times" in found.here


def test_speculation_pays_above_what_drafts_cost() -> None:
    found = rules.check_speculation(make_facts())
    assert found.agrees and "1.2 steps alone, 2 with 16" in found.here
    assert rules.check_speculation(make_facts(checked={1: 0.6, 16: 0.3})).agrees is False


def test_int8_is_judged_by_the_memory() -> None:
    assert rules.check_int8(make_facts()).agrees  # 8.4 GB of 32
    small = rules.check_int8(make_facts(16 * 10**9))
    assert small.agrees is False and "8.4 GB of 16 GB" in small.here  # fits below 24 GB as well
    assert rules.check_int8(make_facts(8 * 10**9)).agrees  # too small, as the rule says


def test_the_best_batch_is_where_doubling_stops_to_help() -> None:
    assert rules.find_batch(make_facts()) == 8  # 8 / 0.14 = 57, 16 / 0.26 = 62
    flat = {(4, n): 0.1 * n for n in BATCHES}
    assert rules.find_batch(make_facts(decode=flat)) == 1
    free = {(4, n): 0.1 for n in BATCHES}
    assert rules.find_batch(make_facts(decode=free)) == 32
    assert rules.check_batch_size(make_facts(decode=free)).agrees is False


def test_requests_a_day() -> None:
    assert rules.count_daily(make_facts()) == pytest.approx(86400 * 16 / 0.26 / 100)
    assert rules.check_cpu(make_facts()).agrees is False
    assert rules.check_cloud(make_facts()).agrees


def test_examples_and_mixed_layers() -> None:
    assert rules.check_shots(make_facts()).agrees
    assert rules.check_shots(make_facts(prefill={10: 0.1, 40: 0.4})).agrees is False
    mixed = rules.check_mixed(make_facts())
    assert mixed.agrees is False and "9.6 bits: 8.4 GB, not 3.5 GB" in mixed.here
    assert rules.check_edge(make_facts()).agrees is None


def test_top_k_is_between_greedy_and_beam_search() -> None:
    found = rules.check_ways(make_facts())
    assert found.agrees and "top-k takes 1.05 times greedy's time" in found.here
    for ways in ({"top-k": 0.9, "beam": 1.5}, {"top-k": 1.6, "beam": 1.5}):
        assert rules.check_ways(make_facts(ways=ways)).agrees is False
    assert "greedy for speed, top-k for balance" in [one.says for one in RULES]


def test_the_matrix_is_checked_by_memory_and_roofline() -> None:
    rows = {row["use_case"]: row for row in read(None, "selection")}
    assert list(rows) == [one.use_case for one in MATRIX] == list(USE_CASES)
    assert rows["chat"]["bytes"] == pytest.approx(4.2e9)
    assert rows["chat"]["least_seconds"] == pytest.approx(3.5e9 / 1e11)
    assert rows["chat"]["agrees"]
    assert rows["bulk"]["least_seconds"] == pytest.approx(100 * 13e9 / 1e11)
    assert rows["bulk"]["fits"] and not rows["bulk"]["agrees"]  # 13 s, the document says 8
    assert rows["quality"]["bytes"] == pytest.approx(168e9) and not rows["quality"]["fits"]


def read(use_case: str | None, table: str) -> list[dict[str, object]]:
    report = report_advice(make_facts(), use_case)
    return next(one for one in report.tables if one.name == table).list_records()


@pytest.mark.parametrize("use_case", USE_CASES)
def test_a_use_case_has_its_row_and_its_rules(use_case: str) -> None:
    assert [row["use_case"] for row in read(use_case, "selection")] == [use_case]
    names = [row["rule"] for row in read(use_case, "rules")]
    assert "INT4 first" in names and "headroom" in names and len(names) < len(RULES)


def test_all_rules_are_shown_without_a_use_case() -> None:
    assert len(read(None, "rules")) == len(RULES)


def test_unknown_use_cases_are_refused() -> None:
    check_use_case("rag")
    with pytest.raises(ConfigError, match=r"chat, bulk, cheap, quality, rag.*'cheap'"):
        check_use_case("cheep")


def test_facts_of_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.planning.partial.RUN", 0.0)
    monkeypatch.setattr("flyweight.planning.partial.SECONDS", 0.0)
    settings = Settings.of(model="stories", threads=1)
    facts = gather_facts("stories", settings, SilentListener())
    assert set(facts.decode) == {(16, 1), (8, 1), *((4, n) for n in BATCHES)}
    assert min(*facts.decode.values(), *facts.checked.values(), *facts.prefill.values()) > 0
    assert set(facts.ways) == {"greedy", "top-k", "beam"} and facts.ways["greedy"] == 1
    assert make_checked(2) == StepShape(((5, 256), (5, 256)), 10, 512)


def test_mixtures_of_experts_are_refused() -> None:
    model = str(MODELS / "qwen3-moe")
    with pytest.raises(ConfigError, match="mixture of experts"):
        gather_facts(model, Settings.of(model=model, threads=1), SilentListener())


def test_the_documents_model_has_its_size() -> None:
    outline = outline_model(Settings.of(model=DOCUMENTS), SilentListener())
    assert outline.params == pytest.approx(6.738e9, rel=1e-3)
