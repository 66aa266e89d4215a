"""`bench spec`: replayed answers, equal tokens on all sides, labels, and the report's figures."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from flyweight.cli.main import app
from flyweight.engine.runner import Runner, Ticket
from flyweight.errors import EngineError
from flyweight.prove import spec_session
from flyweight.prove.spec_drafters import choose_drafters
from flyweight.prove.spec_report import average_parts, make_position_table, make_speed_table
from flyweight.prove.spec_runs import AGAIN, OFF, PLAIN, SpecBench, SpecRun
from flyweight.prove.spec_session import SpecEngine, measure_drafters, open_bench
from flyweight.prove.spec_texts import SpecPrompt, SpecWorkload, list_workloads
from flyweight.speculation import SpeculationConfig, read_speculation
from flyweight.speculation_methods import TREE

ALWAYS = '{"method": "ngram", "num_speculative_tokens": 4, "adaptive": false}'
CYCLE = list(range(20, 29))


def make_cycles(limits, round):
    return [SpecPrompt(CYCLE * 4, (CYCLE * 3)[: limits.answer]) for _ in range(2)]


def make_queue(limits, round):
    return make_cycles(limits, round) * 6


CYCLES = SpecWorkload("cycles", "tokens that repeat", make_cycles)


def read(**keys: Any) -> SpeculationConfig:
    made = read_speculation(keys)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def bench():
    engine = SpecEngine("stories", {"threads": 1, "max_model_len": 256}, 4000, 24, replayed=True)
    made = open_bench(engine, choose_drafters("stories", ALWAYS, None))
    made.clock = map(float, count()).__next__  # a second between two looks at the clock
    return made


def test_replayed_answers_are_the_workloads_and_are_foreseen(bench: SpecBench) -> None:
    found = bench.run(CYCLES, 2)
    assert list(found) == [OFF, AGAIN, "ngram"]
    for runs in found.values():
        assert [run.answers for run in runs] == [((*CYCLE * 2, *CYCLE[:6]),) * 2] * 2
    (without, _), _, (drafted, _) = found.values()
    assert (without.drafts, without.tokens, without.seconds) == (0, 46, 1.0)
    assert drafted.accepted == drafted.proposed > 20
    assert drafted.places[0] == drafted.drafts and sum(drafted.places) == drafted.accepted
    assert len(drafted.steps) < len(without.steps)


def test_a_queue_is_timed_from_the_first_full_batch(bench: SpecBench) -> None:
    queued = SpecWorkload("queue", "more than are computed at once", make_queue)
    found = bench.run(queued, 2)
    (without, _), _, (drafted, _) = found.values()
    assert len(without.answers) == 12 and without.tokens == 12 * 24 - 8
    assert 4 * 24 < drafted.tokens < 12 * 24
    assert max(verified for _, verified in drafted.steps) == 4.0


def test_a_side_without_drafts_taps_no_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = {"method": "medusa", "model": "stories-medusa", "num_speculative_tokens": 2}
    medusa = json.dumps({**heads, "adaptive": False})
    engine = SpecEngine("stories", {"threads": 1, "max_model_len": 128}, 100, 8)
    made = open_bench(engine, choose_drafters("stories", medusa, None))
    runner = made.loaded.engine.runner
    assert isinstance(runner, Runner) and runner.taps == (-1,)
    seen: dict[str, set[tuple[int, ...]]] = {}
    submit = runner.submit

    def look(*args: Any) -> Ticket:
        assert isinstance(runner, Runner)
        side = OFF if made.loaded.engine.drafts.calls.drafter is None else "medusa"
        seen.setdefault(side, set()).add(runner.taps)
        return submit(*args)

    monkeypatch.setattr(runner, "submit", look)
    found = made.run(CYCLES, 2)
    assert seen == {OFF: {()}, "medusa": {(-1,)}}
    assert [run.drafts for run in found[OFF]] == [0, 0] and found["medusa"][1].drafts


def test_tokens_that_differ_are_refused(bench: SpecBench, monkeypatch) -> None:
    find = SpecBench._run

    def wrong(self, side, work, prompts):
        run = find(self, side, work, prompts)
        if side.label not in PLAIN:
            object.__setattr__(run, "answers", ((1,), *run.answers[1:]))
        return run

    monkeypatch.setattr(SpecBench, "_run", wrong)
    with pytest.raises(EngineError, match="cycles: tokens with ngram differ"):
        bench.run(CYCLES, 2)


def test_drafters_of_one_method_are_sides_of_their_own() -> None:
    """Two share an engine; the third has fewer draft tokens, which are a setting of the engine."""
    keys = {"method": "ngram", "adaptive": False}
    drafters = {
        "long": read(**keys, num_speculative_tokens=4),
        "never": read(**keys, num_speculative_tokens=4, prompt_lookup_min=99, prompt_lookup_max=99),
        "short": read(**keys, num_speculative_tokens=1),
    }
    engine = SpecEngine("stories", {"threads": 1, "max_model_len": 256}, 4000, 24, replayed=True)
    found = measure_drafters(drafters, engine, [CYCLES], 2)["cycles"]
    assert list(found) == [*PLAIN, "long", "never", "short"]
    most = {label: max(n for run in found[label] for _, n in run.steps) for label in drafters}
    assert most == {"long": 4, "never": 0, "short": 1}


def test_only_the_first_engine_is_measured_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[list[str]] = []

    def open(engine, drafters, listener, plain):
        sides, number = [*plain, *drafters], len(opened)
        opened.append(sides)
        return SimpleNamespace(run=lambda work, rounds: {side: [number] for side in sides})

    monkeypatch.setattr(spec_session, "open_bench", open)
    drafters = choose_drafters("stories", None, None)
    found = measure_drafters(drafters, SpecEngine("stories", {}, 4000, 24), [CYCLES], 2)
    alone = ["draft_model", "cascade", "medusa", "medusa tree", "eagle", "eagle tree", "eagle3"]
    assert opened == [[OFF, AGAIN, "ngram", "suffix"], *([OFF, label] for label in alone)]
    numbers = {side: number for side, (number,) in found["cycles"].items()}
    assert list(numbers) == [OFF, AGAIN, "ngram", "suffix", *alone]
    assert list(numbers.values()) == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("most", range(1, 12))
def test_no_drafter_of_the_model_inside_has_more_tokens_than_wanted(most: int) -> None:
    drafters = choose_drafters("stories", None, most)
    tokens = {label: one.num_speculative_tokens for label, one in drafters.items()}
    assert tokens["ngram"] == most and max(tokens.values()) == most
    assert (
        tokens["medusa tree"] == min(most, 10) == drafters["medusa tree"].options[TREE].count("(")
    )


def test_a_drafter_that_is_given_is_labelled_by_method_and_tree() -> None:
    def label(**keys: Any) -> list[str]:
        given = json.dumps({"num_speculative_tokens": 2, **keys})
        return list(choose_drafters("stories", given, None))

    assert label(method="suffix") == ["suffix"]
    assert label(model="stories-eagle", tree_width=1) == ["eagle"]
    assert label(model="stories-eagle", tree_width=2) == ["eagle tree"]
    assert label(model="stories-medusa", speculative_token_tree="[(0,), (1,)]") == ["medusa tree"]


def test_the_texts_fit_the_model_and_differ_by_round(bench: SpecBench) -> None:
    folder = None
    for work in list_workloads(folder):
        first, second = (work.make(bench.limits, round) for round in (0, 1))
        assert first == work.make(bench.limits, 0) and first != second
        for prompt in first:
            assert len(prompt.tokens) + len(prompt.answer) <= 256 and len(prompt.answer) == 24


def test_the_report_has_acceptance_speed_up_and_decisions() -> None:
    steps = ((1, 0.0), (5, 4.0), (9, 2.0))
    off = SpecRun(8.0, 8, 0, 0, 0, (), ((9, 0.0),), ((1,),), without=1.0)
    on = SpecRun(4.0, 8, 2, 6, 3, (2, 1), steps, ((1,),), without=1.0)
    runs = {"w": {OFF: [off] * 2, "ngram": [on] * 2}}
    without, drafted = make_speed_table(runs).list_records()
    assert without["speedup"] == 1.0 and without["accepted"] is None
    assert (drafted["accepted"], drafted["length"], drafted["speedup"]) == (0.5, 2.5, 2.0)
    assert (drafted["low"], drafted["high"]) == (2.0, 2.0)
    drafters = {"ngram": read(method="ngram", num_speculative_tokens=3)}
    (row,) = make_position_table(runs, drafters).list_records()
    assert [row[f"position_{i}"] for i in range(3)] == [1.0, 0.5, 0.0]
    assert average_parts([on]) == [0.0, None, None, 4.0, None, None, None, 2.0]


def test_positions_that_a_tree_does_not_have_are_unknown() -> None:
    """A tree of three tokens has two levels."""
    paths = "[(0,), (1,), (0, 0)]"
    heads = {"model": "stories-medusa", "num_speculative_tokens": 3}
    drafters = {
        "chain": read(**heads),
        "tree": read(**heads, speculative_token_tree=paths),
    }
    one = SpecRun(4.0, 8, 2, 6, 3, (2, 1, 0), ((9, 2.0),), ((1,),), without=1.0)
    runs = {"w": {label: [one] for label in drafters}}
    rows = make_position_table(runs, drafters).list_records()
    found = {row["drafter"]: [row[f"position_{i}"] for i in range(3)] for row in rows}
    assert found == {"chain": [1.0, 0.5, 0.0], "tree": [1.0, 0.5, None]}


def test_the_command_prints_one_document(tmp_path: Path) -> None:
    words = ["bench", "spec", "--workload", "random", "-r", "2", "--output-len", "8", "--json",
             "--num-speculative-tokens", "3", "-t", "1",
             "--svg", str(tmp_path / "plot.svg")]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    names = [row["drafter"] for row in document["tables"]["speed"]["rows"]]
    labels = ["draft_model", "cascade", "medusa", "medusa tree", "eagle", "eagle tree", "eagle3"]
    assert names == [*PLAIN, "ngram", "suffix", *labels]
    assert list(document["plot"]["series"]) == [f"random, {label}" for label in names[2:]]
    drafters = {row["drafter"]: row["config"] for row in document["tables"]["drafters"]["rows"]}
    assert list(drafters) == names[2:]
    assert json.loads(drafters["eagle tree"])["tree_width"] == 4
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workload", "manul"], "did you mean 'manual'?"),
        (["-r", "1"], "repetitions = 1 is out of range"),
        (["--num-speculative-tokens", "65"], "num_speculative_tokens = 65 is out of range"),
        (["--speculative-config", "{"], "not valid JSON"),
        (["--speculative-config", ""], "speculative_config = '' is empty; allowed: an object"),
        (
            ["--speculative-config", ALWAYS, "--num-speculative-tokens", "3"],
            "num_speculative_tokens = 3 does not apply with speculative_config",
        ),
        (
            ["--speculative-config", ALWAYS[:-1] + ', "verifier": "rejection"}'],
            "speculative_config.verifier = 'rejection' cannot be compared",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["bench", "spec", *words])
    assert done.exit_code != 0 and says in str(done.exception or "") + done.output
