"""`bench latency`, `throughput` and `startup`: whole requests and whole processes."""

import json
from pathlib import Path

import pytest
from test_kernels_bench import Heard, stand_in

from flyweight.bench.kernels import RunListener
from flyweight.bench.offline import (
    OfflineReport,
    OfflineRequests,
    OfflineResult,
    OfflineRun,
    measure,
)
from flyweight.bench.peer import PeerArgument, PeerMethod
from flyweight.bench.rows import Spread
from flyweight.bench.startup import StartupRun, StartupRuns, measure_startup
from flyweight.bench.workloads import Workload
from flyweight.cli.bench.offline import print_outcome
from flyweight.cli.main import main
from flyweight.errors import ConfigError


def served(seconds: float) -> OfflineResult:
    return OfflineResult(seconds, 1.0, 2.0, 0.5, None, 0.0)


def test_an_outcome_has_vllms_keys() -> None:
    times = (0.4, 0.1, 0.2, 0.3)
    outcome = OfflineReport(OfflineRequests(2, 30, 10, 2), tuple(map(served, times)), ())
    document = outcome.to_document()
    assert document["avg_latency"] == pytest.approx(0.25)
    assert document["latencies"] == [0.4, 0.1, 0.2, 0.3]
    percents = document["percentiles"]
    assert list(percents) == ["10", "25", "50", "75", "90", "99"]
    assert percents["50"] == pytest.approx(0.25) and percents["10"] == pytest.approx(0.13)
    assert percents["99"] == pytest.approx(0.397)
    assert (document["num_requests"], document["total_num_tokens"]) == (2, 80)
    assert document["tokens_per_second"] == pytest.approx(80 / 0.25)


def test_the_cost_of_tokens_at_the_measured_rate() -> None:
    """20 tokens in 0.25 s at $0.72 an hour: $0.0002 a second, 80 tokens a second, $2.50."""
    outcome = OfflineReport(OfflineRequests(2, 30, 10, 2), (served(0.2), served(0.3)), ())
    assert outcome.compute_cost(0.72) == pytest.approx(2.5)
    document = outcome.to_document(0.72)
    assert document["cost_per_million_output_tokens"] == pytest.approx(2.5)
    assert "cost_per_million_output_tokens" not in outcome.to_document()


def test_answers_have_their_length_and_nothing_is_found_by_accident() -> None:
    serving = OfflineRun("stories", OfflineRequests(5, 40, 6, 2), RunListener())
    for round in (0, 1):
        before = serving.llm.stats()
        serving.run_once(round)
        after = serving.llm.stats()
        assert after["cached"] == before["cached"]
        assert after["produced"] - before["produced"] == 5 * 6
        assert after["computed"] - before["computed"] == 5 * (40 + 5)


def test_answers_of_mixed_lengths_take_more_steps_in_static_batches() -> None:
    requested = OfflineRequests(6, 8, 10, 2, spread=0.9)
    answers = requested.answers
    assert len(set(answers)) > 2 and all(1 <= n <= 19 for n in answers)
    assert requested.tokens == 6 * 8 + sum(answers)
    steps = {}
    for scheduler in ("continuous", "static"):
        serving = OfflineRun("stories", requested, RunListener(), scheduler=scheduler)
        serving.run_once(0)
        stats = serving.llm.stats()
        assert stats["produced"] == sum(answers)
        steps[scheduler] = stats["steps"]
    batches = [answers[i : i + 2] for i in range(0, 6, 2)]
    assert steps["static"] == sum(map(max, batches)) > steps["continuous"]


@pytest.mark.parametrize("ratio, near", [("-0.5", "0"), ("1", "0.99")])
def test_a_ratio_out_of_range_is_refused(ratio: str, near: str, capsys) -> None:
    assert main(["bench", "throughput", f"--output-range-ratio={ratio}"]) == 2
    error = capsys.readouterr().err
    assert "output_range_ratio" in error and f"nearest valid: {near}" in error


def test_warm_up_rounds_do_not_count_and_peers_take_turns(tmp_path: Path) -> None:
    seen, heard = tmp_path / "seen", Heard()
    note = f'open({str(seen)!r}, "a").write(line) and {{"seconds": 50.0}}'
    requested = OfflineRequests(3, 8, 4, 2)
    serving = OfflineRun("stories", requested, heard)
    with serving.open_peers([PeerArgument("openvino")], stand_in(tmp_path, note)):
        outcome = measure(serving, rounds=2, warm=1)
    assert [name for name, _, _ in heard.rounds] == ["warm-up", "round 1", "round 2"]
    assert len(outcome.ours) == 2
    (peer,) = outcome.peers
    assert peer.seconds == (50.0, 50.0)
    ratios = sorted(50.0 / seconds for seconds in outcome.seconds)
    assert (peer.ratio.least, peer.ratio.most) == (ratios[0], ratios[1])
    commands = [json.loads(line) for line in seen.read_text().splitlines()]
    assert [command["prompts"] for command in commands] == [
        requested.make_prompts(serving.vocab, round) for round in range(3)
    ]
    assert all(command["gen"] == 4 for command in commands)


def test_a_peer_that_fails_is_left_out(tmp_path: Path) -> None:
    heard = Heard()
    serving = OfflineRun("stories", OfflineRequests(1, 8, 2, 1), heard)
    with serving.open_peers(
        [PeerArgument("openvino")], stand_in(tmp_path, '{"error": "out of room"}')
    ):
        outcome = measure(serving, rounds=2, warm=0)
    assert outcome.peers == () and len(outcome.ours) == 2
    assert heard.warnings == ["openvino: out of room; it is left out"]


@pytest.mark.parametrize(
    "words, lines",
    [
        (
            ("latency", "--num-iters", "2", "--num-iters-warmup", "0", "--batch-size", "2"),
            ("Avg latency: ", "10% percentile latency: ", "25% ", "50% ", "75% ", "90% ", "99% "),
        ),
        (
            ("throughput", "--num-prompts", "3"),
            ("Throughput: ", "Total num prompt tokens:  24", "Total num output tokens:  12"),
        ),
    ],
)
def test_commands_print_what_vllms_do(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    lines: tuple[str, ...],
) -> None:
    file = tmp_path / "figures.json"
    short = ("--input-len", "8", "--output-len", "4", "--output-json", str(file))
    assert main(["bench", *words, *short]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(lines) + 2
    assert all(line.startswith(start) for line, start in zip(shown, lines, strict=False))
    assert shown[-2].startswith("Achieved: ") and "of the machine's limit" not in shown[-2]
    assert shown[-1].startswith("deterministic: always on; overhead: n/a")
    assert json.loads(file.read_text())["num_requests"] == (3 if "throughput" in words else 2)


@pytest.mark.parametrize(
    "words, said",
    [
        (("latency", "--batch-size", "0"), "batch_size = 0 is out of range"),
        (("latency", "--batch-size", "5000"), "batch_size = 5000 is out of range; allowed: a"),
        (("throughput", "--num-prompts", "0"), "num_prompts = 0 is out of range"),
        (("throughput", "--max-num-seqs", "5000"), "1 to 4096; nearest valid: 4096"),
        (("throughput", "--input-len", "0"), "input_len = 0 is out of range"),
        (("startup", "-r", "0"), "repetitions = 0 is out of range"),
        (("startup", "none.gguf"), "'none.gguf' is not a file"),
    ],
)
def test_wrong_sizes_are_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_start_ends_with_a_token(tmp_path: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    starts = measure_startup(
        "stories", ("--threads", "1"), 2, [PeerArgument("openvino")],
        stand_in(tmp_path, '{"seconds": 0.5}'), lambda *step: reported.append(step),
    )  # fmt: skip
    assert reported == [("first start", 0, 3), ("start 1", 1, 3), ("start 2", 2, 3)]
    for one in (starts.cold, *starts.warm):
        assert 0 < one.first <= one.whole and one.peak > 10 << 20
    assert len(starts.warm) == len(starts.peers["openvino"]) == 2


def test_a_peer_that_fails_loses_no_starts(tmp_path: Path) -> None:
    warnings: list[str] = []
    starts = measure_startup(
        "stories", ("--threads", "1"), 2, [PeerArgument("openvino")],
        stand_in(tmp_path, '{"error": "out of room"}'), warn=warnings.append,
    )  # fmt: skip
    assert len(starts.warm) == 2 and starts.peers == {}
    assert warnings == ["openvino: out of room; it is left out"]


def test_the_share_is_shown_of_weights_that_memory_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_outcome(
        OfflineReport(OfflineRequests(1, 8, 2, 1), (served(0.1),), (), weights=1 << 30), None
    )
    assert "50% of the machine's limit" in capsys.readouterr().out


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(ConfigError, match="flyweight run says error: memory_limit"):
        measure_startup("stories", ("--memory-limit", "1MiB"), 1, [], PeerMethod())


def test_ratios_are_of_the_same_round() -> None:
    warm = tuple(StartupRun(first, first + 1, 1) for first in (1.0, 2.0, 4.0))
    starts = StartupRuns(StartupRun(9.0, 9.0, 1), warm, {"openvino": (4.0, 4.0, 4.0)})
    assert starts.middle == Spread(2.0, 1.0, 4.0)
    assert starts.compute_ratio("openvino") == Spread(2.0, 1.0, 4.0)


def test_llama_benchs_programs_serve_no_requests(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    heard = Heard()
    serving = OfflineRun("stories", OfflineRequests(1, 8, 2, 1), heard)
    with serving.open_peers(
        [PeerArgument("llama.cpp")], PeerMethod(programs={"llama.cpp": str(program)})
    ):
        assert measure(serving, rounds=1, warm=0).peers == ()
    assert "llama-cpp-python does" in heard.warnings[0]
    assert Workload(gen=1).before == 0
