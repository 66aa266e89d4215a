"""The report of `bench sampling`: what ways to choose tokens cost, next to the course's figures.

Invariant: the course's times are of another machine and model; its ratios are what can be compared.
"""

from collections.abc import Sequence

from flyweight.bench.decoding import BEAM, GREEDY, TOP_K, DecodingResult, DecodingTest
from flyweight.planning.report import Column, Report, ReportTable, Value

SEED_MS = {GREEDY: 400.0, TOP_K: 420.0, BEAM: 600.0}  # of 100 tokens


def report_decoding(test: DecodingTest, results: Sequence[DecodingResult]) -> Report:
    columns = [
        Column("way", "way"),
        Column("ms_per_100", "100 tokens", lambda ms: f"{ms:,.1f} ms"),
        Column("ratio", "to greedy", lambda ratio: f"{ratio:.2f}x"),
        Column("least", "least", lambda ratio: f"{ratio:.2f}x"),
        Column("most", "most", lambda ratio: f"{ratio:.2f}x"),
        Column("seed_ms", "course", lambda ms: f"{ms:.0f} ms"),
        Column("seed_ratio", "to greedy", lambda ratio: f"{ratio:.2f}x"),
        Column("copied", "copies"),
    ]
    rows: list[list[Value]] = [
        [
            one.way,
            1e5 * one.seconds / test.output_len,
            one.ratio.median,
            one.ratio.least,
            one.ratio.most,
            SEED_MS[one.way],
            SEED_MS[one.way] / SEED_MS[GREEDY],
            one.copied,
        ]
        for one in results
    ]
    notes = (
        f"One request, {test.input_len} tokens in and {test.output_len} out; {test.rounds} rounds "
        "in turn, ratios within a round.",
        f"top-k: temperature 0.8 among {test.top_k} tokens.  beam: {test.beam_width} beams on "
        "shared blocks; copies: blocks that beams copied before they wrote to them.",
    )
    table = ReportTable("decoding", "Ways to choose tokens", columns, rows, notes)
    return Report("Sampling", [table])
