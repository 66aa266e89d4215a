"""Exact memory of a use, the devices it fits, and the nearest settings that do."""

from dataclasses import replace

import pytest

from flyweight.cli.plan import memory
from flyweight.cli.plan.memory import measure_use, open_planner
from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import ConfigError
from flyweight.planning.memory import MemoryPlanner, PlannedUse, find_most
from flyweight.planning.memory_report import Place, report_memory
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.report import Report

USE = PlannedUse(64, sequences=3, kv_dtype="f16")


def get_rows(report: Report, name: str) -> list[dict[str, object]]:
    return next(table.list_records() for table in report.tables if table.name == name)


def test_kv_of_every_sequence_at_its_full_length(planner: MemoryPlanner) -> None:
    plan = planner.plan(USE)
    token = 2 * 2 * 2 * 8 * 2  # layers, K and V, K/V heads, elements of a head, bytes
    assert plan.blocks == 3 * 2 + 1  # 64 tokens are two blocks of 32; one to spare
    assert plan.kv == 7 * 32 * token


def test_parts_and_weights_add_up(planner: MemoryPlanner) -> None:
    report = report_memory(planner, USE, [Place("here", 1 << 33, 1 << 33)])
    parts = {row["part"]: row["bytes"] for row in get_rows(report, "parts")}
    peak = parts.pop("planned peak")
    assert peak == sum(parts.values()) == planner.count_needed(USE)
    weights = get_rows(report, "weights")
    assert sum(row["bytes"] for row in weights) == parts["weights"]
    assert sum(row["params"] for row in weights) == planner.outline.params


def test_a_draft_model_is_a_part_of_the_plan(planner: MemoryPlanner) -> None:
    pair = replace(planner, draft=planner.outline, _needs={}, _needed={})
    alone, both = planner.plan(USE), pair.plan(USE)
    keys = 8 * alone.blocks * 32  # of the tokens in blocks of 32, which tell what is computed
    assert both.draft_kv == alone.kv + keys
    assert both.need == alone.need + alone.weights + alone.rounding + alone.kv + keys
    assert pair.expect_peak(USE) == planner.expect_peak(USE) + both.draft + both.draft_kv
    report = report_memory(pair, USE, [Place("here", 1 << 33, 1 << 33)])
    parts = {row["part"]: row["bytes"] for row in get_rows(report, "parts")}
    assert parts["draft model's weights"] == alone.weights + alone.rounding
    with pytest.raises(ConfigError, match="check runs one model; leave draft_model out"):
        measure_use(pair, USE)


def test_the_draft_is_found_without_the_models_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def read(settings: Settings) -> ModelOutline:
        seen.append(settings)
        return outline_model(replace(settings, revision=None, load_format="auto"), SilentListener())

    monkeypatch.setattr(memory, "read_outline", read)
    options = {"revision": "v2", "load_format": "gguf"}
    open_planner(Settings.of(model="stories", **options), "stories-draft")
    found = [(one.model, one.revision, one.load_format) for one in seen]
    assert found == [("stories", "v2", "gguf"), ("stories-draft", None, "auto")]


def test_the_longest_context_is_the_last_that_fits(planner: MemoryPlanner) -> None:
    allowed = planner.count_needed(replace(USE, context=128))
    longest = planner.find_longest_context(USE, allowed)
    assert longest is not None and longest >= 128
    assert planner.count_needed(replace(USE, context=longest)) <= allowed
    assert planner.count_needed(replace(USE, context=longest + 1)) > allowed
    assert planner.find_longest_context(USE, 1 << 20) is None


def test_suggestions_fit_and_change_one_thing_first(planner: MemoryPlanner) -> None:
    wide = PlannedUse(256, sequences=2000, kv_dtype="f16")
    allowed = planner.count_needed(replace(wide, sequences=1000))
    found = planner.suggest(wide, allowed)
    assert len(found) == 3 and all(planner.count_needed(one) <= allowed for one in found)
    assert found[0] == replace(wide, context=found[0].context)
    assert found[1] == replace(wide, sequences=1000)
    assert planner.suggest(wide, 1 << 20) == []


def test_a_place_that_is_too_small_is_listed_with_settings_or_without(
    planner: MemoryPlanner,
) -> None:
    need = planner.count_needed(USE)
    places = [Place("small", need, need - 1), Place("none", 1, 1), Place("large", need, need)]
    report = report_memory(planner, USE, places)
    assert [row["fits"] for row in get_rows(report, "devices")] == [False, False, True]
    assert {row["device"] for row in get_rows(report, "settings")} == {"small"}
    notes = next(table.notes for table in report.tables if table.name == "settings")
    assert notes == ("Nothing fits, also with 2 bits a weight: none.",)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (PlannedUse(8), "context = 8 is out of range; allowed: 16 to"),
        (PlannedUse(64, 0), "sequences = 0 is out of range"),
        (PlannedUse(1 << 24, 4096), "nearest valid: 63"),
        (PlannedUse(64, bits=7), "bits = 7 .* nearest valid: 8"),
    ],
)
def test_uses_that_are_refused(use: PlannedUse, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        use.check()


def test_the_most_that_fits() -> None:
    assert find_most(lambda n: n <= 37, 1, 100) == 37
    assert find_most(lambda n: True, 1, 100) == 100
    assert find_most(lambda n: False, 1, 100) is None
