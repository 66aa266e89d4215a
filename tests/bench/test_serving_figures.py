"""Figures of a load, from answers whose times are written down, and how they are said."""

from array import array
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from flyweight.bench.serving.arrivals import ArrivalRate
from flyweight.bench.serving.comparing import compare, find_inequality, write_comparison
from flyweight.bench.serving.drafts import DraftStatistics
from flyweight.bench.serving.load import LoadResult, RequestSchedule
from flyweight.bench.serving.report import (
    ReportHeader,
    find_miscounts,
    list_reasons,
    make_document,
    make_file_name,
    write_block,
)
from flyweight.bench.serving.requests import LoadRequest, StreamedAnswer
from flyweight.bench.serving.summary import (
    LoadSummary,
    parse_goals,
    parse_metrics,
    parse_percents,
    summarize,
)
from flyweight.errors import ConfigError

METRICS = ("ttft", "tpot", "itl", "e2el")


def answer(
    start: float, *times: float, tokens: int | None = None, error: str = ""
) -> StreamedAnswer:
    """Sent at `start`, its chunks so many seconds after."""
    end = start + (times[-1] if times else 0)
    moments = array("d", [start + t for t in times])
    return StreamedAnswer(start, end, moments, ["w"] * len(times), tokens, None, True, error)


ANSWERS = (
    answer(100.0, 0.5, 0.6, 0.9),
    answer(100.0, 1.0, 1.1),
    answer(101.5, 0.2, tokens=1),
    answer(102.0, error="HTTP 429: full"),
    answer(102.0, 0.1, error="it died"),
    answer(102.0, error="HTTP 429: full"),
)
ASKS = [LoadRequest([0] * n, n, 4) for n in (10, 20, 30, 40, 50, 60)]
PLAYED = LoadResult(RequestSchedule(ASKS, [0.0] * 6, 4), ANSWERS, 4.0, 0.0007)


def summary(**more: Any) -> LoadSummary:
    given: dict[str, Any] = {"percents": (50, 99), "goals": {}} | more
    return summarize(PLAYED, given["percents"], given["goals"])


def header(**more: Any) -> ReportHeader:
    given: dict[str, Any] = {
        "backend": "openai", "model": "org/m", "tokenizer": "t", "count": 6, "pace": ArrivalRate(),
        "most": None,
    }  # fmt: skip
    return ReportHeader(**(given | more))


def test_counts_and_rates() -> None:
    got = summary()
    assert (got.completed, got.failed) == (3, 3)
    assert got.reasons == {"HTTP 429: full": 2, "it died": 1}
    assert (got.input_tokens, got.output_tokens) == (60, 6)
    assert (got.requests, got.output, got.total) == (0.75, 1.5, 16.5)
    assert got.concurrency == pytest.approx((0.9 + 1.1 + 0.2) / 4)
    assert got.chunks == 7 and got.processor_us == pytest.approx(100)


def test_the_cost_of_tokens_at_the_measured_rate() -> None:
    """1.5 tokens a second of a machine at $2.70 an hour: $0.00075 a second, $500 a million."""
    priced = header(hourly=2.7)
    (line,) = [line for line in write_block(summary(), priced, []) if "Cost" in line]
    assert line.split() == ["Cost", "of", "1M", "output", "tokens", "($):", "500"]
    made = make_document(summary(), priced, [], PLAYED, detailed=False)
    assert made["cost_per_million_output_tokens"] == pytest.approx(500)
    assert not any("Cost" in line for line in write_block(summary(), header(), []))


def test_every_gap_counts_and_every_request_once() -> None:
    times = summary().times
    assert times["ttft"].mean == pytest.approx(1e3 * (0.5 + 1.0 + 0.2) / 3)
    assert times["itl"].mean == pytest.approx(1e3 * (0.1 + 0.3 + 0.1) / 3)
    assert times["itl"].median == pytest.approx(100)
    assert times["tpot"].mean == pytest.approx(1e3 * (0.2 + 0.1) / 2)  # one of one token has none
    assert times["e2el"].median == pytest.approx(900)
    waits = [500.0, 1000.0, 200.0]
    assert times["ttft"].std == pytest.approx(np.std(waits))
    assert times["ttft"].percentiles[99] == pytest.approx(np.percentile(waits, 99))


def test_tokens_are_the_servers_where_it_counts_them() -> None:
    many = LoadResult(RequestSchedule([ASKS[0]], [0.0]), [answer(0, 1.0, 2.0, tokens=9)], 2.0, 0.0)
    got = summarize(many, (), {})
    assert got.output_tokens == 9 and got.times["tpot"].mean == pytest.approx(1000 / 8)
    assert got.peak_output == pytest.approx(4.5)  # a second's chunk of two, of nine tokens


def test_peaks_are_of_seconds_since_the_first() -> None:
    got = summary()
    assert got.peak_output == 3  # the first second has 0.5, 0.6 and 0.9
    assert got.peak_requests == 2
    assert (
        summarize(LoadResult(RequestSchedule([], []), [], 1.0, 0.0), (99,), {}).peak_requests == 0
    )


def test_goodput_counts_requests_that_keep_every_goal() -> None:
    assert summary(goals={}).good is None
    assert summary(goals={"ttft": 600.0}).good == 2 / 4
    assert summary(goals={"ttft": 600.0, "e2el": 800.0}).good == 1 / 4
    assert summary(goals={"tpot": 100.0}).good == 2 / 4  # a single token is in time


def test_the_block_has_vllms_labels_in_order() -> None:
    got = [
        *write_block(summary(goals={"ttft": 600.0}), header(most=4, pace=ArrivalRate(2.5)), METRICS)
    ]
    labels = [line.split(":")[0] for line in got if ":" in line]
    assert labels == [
        "Successful requests", "Failed requests", "Maximum request concurrency",
        "Request rate configured (RPS)", "Benchmark duration (s)", "Total input tokens",
        "Total generated tokens", "Request throughput (req/s)", "Request goodput (req/s)",
        "Output token throughput (tok/s)", "Peak output token throughput (tok/s)",
        "Peak concurrent requests", "Total token throughput (tok/s)", "Concurrency",
        "Client processor time (us/chunk)",
        *(f"{kind} {name.upper()} (ms)" for name in METRICS
          for kind in ("Mean", "Median", "P50", "P99")),
    ]  # fmt: skip
    assert got[0] == "============ Serving Benchmark Result ============"
    assert got[-1] == "=" * 50
    titles = [line for line in got if line.startswith("--")]
    assert titles == [
        "---------------Time to First Token----------------",
        "-----Time per Output Token (excl. 1st token)------",
        "---------------Inter-token Latency----------------",
        "----------------End-to-end Latency----------------",
    ]
    assert "Successful requests:                     3         " in got
    assert "Output token throughput (tok/s):         1.50      " in got


def test_what_was_not_requested_is_not_in_the_block() -> None:
    got = "\n".join(write_block(summary(), header(), ["ttft"]))
    for absent in ("goodput", "RPS", "Maximum request", "ITL", "E2EL"):
        assert absent not in got


def test_the_document_has_vllms_keys() -> None:
    got = make_document(
        summary(), header(pace=ArrivalRate(2.5), most=4), ["ttft"], PLAYED, detailed=False
    )
    keys = (
        "date backend label model_id tokenizer_id num_prompts request_rate burstiness "
        "max_concurrency duration completed failed total_input_tokens total_output_tokens "
        "request_throughput request_goodput output_throughput total_token_throughput "
        "max_output_tokens_per_s max_concurrent_requests "
        "mean_ttft_ms median_ttft_ms std_ttft_ms p50_ttft_ms p99_ttft_ms"
    )
    assert {*keys.split()} <= got.keys()
    assert not {"ttfts", "mean_itl_ms"} & got.keys()
    assert (got["request_rate"], got["max_concurrency"]) == (2.5, 4)
    assert make_document(summary(), header(), [], PLAYED, detailed=False)["request_rate"] == "inf"
    ramp = ArrivalRate(ramp="linear", ramp_start=1.0, ramp_end=2.0)
    assert (
        make_document(summary(), header(pace=ramp), [], PLAYED, detailed=False)["ramp_up_end_rps"]
        == 2.0
    )
    odd = make_document(summary(percents=(99.9,)), header(), ["itl"], PLAYED, detailed=False)
    assert "p99.9_itl_ms" in odd


PAGE = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="a b"}} {0}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="a b"}} {1}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="a b"}} {2}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="a",position="0"}} {3}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="a",position="1"}} {4}
vllm:generation_tokens_total{{engine="0",model_name="a b"}} 9.0
"""


def test_what_became_of_drafts_meanwhile() -> None:
    pages = [DraftStatistics.of(PAGE.format(*row)) for row in ((1, 2, 1, 1, 0), (11, 22, 13, 9, 4))]
    assert pages[0] is not None and pages[1] is not None
    drafts = pages[1].subtract(pages[0])
    assert drafts is not None and drafts.rates == [0.8, 0.4]
    assert (drafts.rate, drafts.length) == (60.0, 2.2)
    reported = [*write_block(summary(), header(), [], drafts)]
    at = reported.index("---------------Speculative Decoding---------------")
    assert reported[at + 1 :] == [
        "Acceptance rate (%):                     60.00     ",
        "Acceptance length:                       2.20      ",
        "Drafts:                                  10        ",
        "Draft tokens:                            20        ",
        "Accepted tokens:                         12        ",
        "Per-position acceptance (%):",
        "  Position 0:                            80.00     ",
        "  Position 1:                            40.00     ",
        "=" * 50,
    ]
    got = make_document(summary(), header(), [], replace(PLAYED, drafts=drafts), detailed=False)
    assert got["spec_decode_num_drafts"] == 10 and got["spec_decode_acceptance_rate"] == 60.0
    assert got["spec_decode_per_position_acceptance_rates"] == [0.8, 0.4]
    assert pages[0].subtract(pages[0]) is None and DraftStatistics.of("vllm:other 1\n") is None


def test_when_a_ramp_reached_which_rate() -> None:
    ramp = ArrivalRate(ramp="linear", ramp_start=1.0, ramp_end=4.0)
    assert (
        ramp.list_growth(7) == [(0, 1), (2, 2), (4, 3), (6, 4)]
        and ArrivalRate(2.0).list_growth(7) == []
    )
    load = RequestSchedule(ASKS, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    reported = make_document(
        summary(), header(pace=ramp), [], replace(PLAYED, load=load, began=86400.0), detailed=False
    )["rps_change_events"]
    assert [one["rps"] for one in reported] == [1, 2, 3, 4]
    moments = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in reported]
    assert [moment - 86400.0 for moment in moments] == [0.0, 2.0, 4.0, 5.0]


def test_details_are_one_a_request() -> None:
    got = make_document(summary(), header(), [], PLAYED, detailed=True)
    assert got["input_lens"] == [10, 20, 30, 40, 50, 60]
    assert got["output_lens"] == [3, 2, 1, 0, 0, 0]
    assert got["errors"] == ["", "", "", "HTTP 429: full", "it died", "HTTP 429: full"]
    assert got["ttfts"][:3] == pytest.approx([0.5, 1.0, 0.2])
    assert got["itls"][0] == pytest.approx([0.1, 0.3])
    assert got["generated_texts"][0] == "www" and len(got["start_times"]) == 6


def test_names_of_files() -> None:
    assert make_file_name(header()).startswith("openai-infqps-m-")
    name = make_file_name(header(pace=ArrivalRate(2.5), most=4, label="night"))
    assert name.startswith("night-2.5qps-concurrency4-m-") and name.endswith(".json")
    ramp = ArrivalRate(ramp="linear", ramp_start=1.0, ramp_end=20.0)
    assert make_file_name(header(pace=ramp)).startswith("openai-ramp-up-linear-1qps-20qps-m-")


def test_reasons_are_shown_once_each_and_not_all() -> None:
    assert [*list_reasons(summary())] == ["2 failed: HTTP 429: full", "1 failed: it died"]
    many = [answer(0, error=f"why {i}") for i in range(7)]
    load = RequestSchedule([ASKS[0]] * 7, [0.0] * 7)
    got = [*list_reasons(summarize(LoadResult(load, many, 1.0, 0.0), (), {}))]
    assert len(got) == 6 and got[-1] == "... and 2 other reasons"


def test_a_servers_other_count_of_a_prompt_is_reported() -> None:
    right, wrong = answer(0, 1.0), answer(0, 1.0)
    right.prompt_counted, wrong.prompt_counted = 10, 21
    assert [*find_miscounts(LoadResult(RequestSchedule(ASKS[:1], [0.0]), [right], 1.0, 0.0))] == []
    (line,) = find_miscounts(
        LoadResult(RequestSchedule(ASKS[:2], [0.0] * 2), [right, wrong], 1.0, 0.0)
    )
    assert "counts 1 prompts differently (21 tokens for 20)" in line


def test_ratios_are_above_one_where_ours_is_better() -> None:
    def document(answers: list[StreamedAnswer], seconds: float, *percents: float) -> dict[str, Any]:
        played = LoadResult(PLAYED.load, answers, seconds, 0.0)
        header = ReportHeader("openai", "m", "", 6, ArrivalRate(), None)
        found = summarize(played, percents, {})
        return make_document(found, header, METRICS, played, detailed=False)

    slow = [answer(0, 1.0, 3.0)] * 6
    fast = [answer(0, 0.5, 1.0)] * 6
    ours, other = document(fast, 2.0, 99), document(slow, 8.0, 99)
    got = compare(ours, other)
    assert got["Output token throughput (tok/s)"] == (6.0, 1.5, 4.0)
    assert got["Median TTFT (ms)"] == (500.0, 1000.0, 2.0)
    assert got["P99 ITL (ms)"] == (500.0, 2000.0, 4.0)
    lines = [*write_comparison(ours, other, "http://x:1")]
    assert "http://x:1" in lines[0] and any(line.endswith("x4.00") for line in lines)
    assert "P99 ITL (ms)" not in compare(document(fast, 2.0), document(slow, 8.0))
    dead = document([answer(0, error="gone")] * 6, 1.0, 99)
    less = document([*fast[:5], answer(0, error="gone")], 2.0, 99)
    for unequal in (dead, less):
        assert compare(ours, unequal) == compare(unequal, ours) == {}
        assert find_inequality(ours, unequal)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: parse_goals(["ttft"]), "write NAME:MILLISECONDS"),
        (lambda: parse_goals(["ttft:-3"]), "write NAME:MILLISECONDS"),
        (lambda: parse_goals(["itl:3"]), "goodput = 'itl:3'; known: ttft, tpot, e2el"),
        (lambda: parse_metrics("ttft,tpt"), "did you mean 'tpot'"),
        (lambda: parse_percents("99,x"), "metric_percentiles = '99,x'"),
        (lambda: parse_percents("101"), "numbers of 0 to 100"),
    ],
)
def test_wishes_that_are_none(call: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()


def test_wishes() -> None:
    assert parse_goals(["ttft:500", "e2el:2e3"]) == {"ttft": 500.0, "e2el": 2000.0}
    assert parse_metrics("e2el,ttft") == ["ttft", "e2el"] and parse_percents("50,99.9") == [
        50.0,
        99.9,
    ]
