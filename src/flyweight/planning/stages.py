"""The report of `bench stages`: each stage's time and its share of the whole.

Invariant: shares add up to 100 %.  The course's shares are computed from its times, as the ones
that it prints add up to 97 %.
"""

from flyweight.bench.stages import STAGES, StageTimes
from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.planning.units import write_seconds

# Milliseconds of a 7B model that writes 100 tokens; inference is prefill and decode together.
SEED_MS = {"tokenize": 10.0, "embed": 20.0, "detokenize": 10.0, "other": 30.0}
SEED_INFERENCE, SEED_WHOLE = 480.0, 550.0


def report_stages(total: StageTimes, rounds: int, tokens: int) -> Report:
    """`total` is the sum of so many rounds, each with `tokens` tokens of answer."""
    columns = [
        Column("stage", "stage"),
        Column("seconds", "time", write_seconds),
        Column("share", "share", lambda share: f"{share:.2%}"),
        Column("seed_share", "course", lambda share: f"{share:.1%}"),
    ]
    rows: list[list[Value]] = []
    for stage in STAGES:
        seconds = getattr(total, stage)
        known = SEED_MS.get(stage)
        rows.append(
            [
                stage,
                seconds / rounds,
                seconds / total.whole,
                None if known is None else known / SEED_WHOLE,
            ]
        )
    rows.append(["whole", total.whole / rounds, 1.0, 1.0])
    notes = (
        f"One request, {tokens} tokens of answer, the mean of {rounds} rounds.  other: "
        "scheduling, batches, commits, and all that no timer saw.",
        f"The course's inference, {SEED_INFERENCE / SEED_WHOLE:.1%}, is prefill and decode.",
        "The shares that the course prints (2, 3, 85, 2, 5 %) add up to 97 %; these are made from "
        "its milliseconds.",
    )
    table = ReportTable("stages", "From text to text", columns, rows, notes, frozenset({7}))
    return Report("Stages of a request", [table])
