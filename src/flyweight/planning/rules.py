"""The rules of the founding documents, each with what holds on this machine.

"S1" is the lesson on inference optimisation, "S2" the one for edge RAG.

Invariant: a rule says what the document says; `agrees` is None where this machine cannot tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyweight.bench.decoding import BEAM, TOP_K
from flyweight.planning.advice_facts import BATCHES, DRAFTS, FEW_SHOT, ZERO_SHOT, AdviceFacts
from flyweight.planning.estimate import count_weight_bytes, estimate_memory
from flyweight.planning.quantities import write_gb
from flyweight.planning.units import write_ratio, write_seconds

DAY = 86_400  # seconds
ANSWER = 100  # tokens of an answer, as in S2
WORTH = 1.25  # what twice the batch must bring
USE_CASES = ("chat", "bulk", "cheap", "quality", "rag")
EVERY = frozenset(USE_CASES)


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What holds here, and whether the rule agrees with it."""

    here: str
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """`says` is the document's advice, in our words, for some use cases."""

    name: str
    source: str
    says: str
    check: Callable[[AdviceFacts], RuleCheck]
    cases: frozenset[str] = EVERY


def check_int4(facts: AdviceFacts) -> RuleCheck:
    times = facts.decode[16, 1] / facts.decode[4, 1]
    return RuleCheck(
        f"4 bits decode {write_ratio(times)} times as fast as 16 "
        f"({write_seconds(facts.decode[4, 1])} and {write_seconds(facts.decode[16, 1])} a token)",
        times >= 2,
    )


def check_batching(facts: AdviceFacts) -> RuleCheck:
    times = facts.compute_rate(4, 16) / facts.compute_rate(4, 1)
    return RuleCheck(f"16 sequences make {write_ratio(times)} times the tokens of one", times >= 2)


def check_speculation(facts: AdviceFacts) -> RuleCheck:
    alone, many = (facts.checked[n] / facts.decode[4, n] for n in (1, 16))
    return RuleCheck(
        f"a step with {DRAFTS} drafts costs {write_ratio(alone)} steps alone, "
        f"{write_ratio(many)} with 16 sequences; it pays above {write_ratio(alone - 1)} and "
        f"{write_ratio(many - 1)} accepted",
        alone < many and alone - 1 < DRAFTS,
    )


def check_int8(facts: AdviceFacts) -> RuleCheck:
    need, total = estimate_memory(facts.params, 8), facts.machine.total
    fits = need <= 0.8 * total
    slower = facts.decode[8, 1] / facts.decode[4, 1]
    return RuleCheck(
        f"8 bits need {write_gb(need)} of {write_gb(total)} and take "
        f"{write_ratio(slower)} times the time of 4 bits a token",
        fits == (total >= 24e9),
    )


def check_batch_size(facts: AdviceFacts) -> RuleCheck:
    best = find_batch(facts)
    rates = ", ".join(f"{n}: {write_ratio(facts.compute_rate(4, n))}" for n in BATCHES)
    return RuleCheck(
        f"{best}: twice as many bring less than 25 % more; tokens/s by batch: {rates}",
        4 <= best <= 8,
    )


def find_batch(facts: AdviceFacts) -> int:
    """The batch from which twice as many sequences bring less than a quarter more tokens."""
    for n in BATCHES[:-1]:
        if facts.compute_rate(4, 2 * n) < WORTH * facts.compute_rate(4, n):
            return n
    return BATCHES[-1]


def check_headroom(facts: AdviceFacts) -> RuleCheck:
    limit = 0.8 * facts.machine.total
    return RuleCheck(f"--memory-limit is 80% by default: {write_gb(limit)} here", True)


def count_daily(facts: AdviceFacts) -> float:
    """Requests a day, 16 at a time, each of `ANSWER` tokens."""
    return DAY * facts.compute_rate(4, 16) / ANSWER


def check_cpu(facts: AdviceFacts) -> RuleCheck:
    daily = count_daily(facts)
    return RuleCheck(
        f"this CPU answers up to {daily:,.0f} requests of 100 tokens a day", daily < 1000
    )


def check_edge(facts: AdviceFacts) -> RuleCheck:
    return RuleCheck("`--device cuda` computes on a GPU; `plan device` compares costs", None)


def check_cloud(facts: AdviceFacts) -> RuleCheck:
    daily = count_daily(facts)
    return RuleCheck(
        f"up to {daily:,.0f} queries a day here; `plan breakeven` has the prices", daily >= 10_000
    )


def check_shots(facts: AdviceFacts) -> RuleCheck:
    times = facts.prefill[FEW_SHOT] / facts.prefill[ZERO_SHOT]
    return RuleCheck(
        f"{FEW_SHOT} tokens take {write_ratio(times)} times as long as {ZERO_SHOT} "
        f"({write_seconds(facts.prefill[FEW_SHOT])} and {write_seconds(facts.prefill[ZERO_SHOT])})",
        1.2 <= times <= 3,
    )


def check_ways(facts: AdviceFacts) -> RuleCheck:
    top_k, beam = facts.ways[TOP_K], facts.ways[BEAM]
    return RuleCheck(
        f"top-k takes {write_ratio(top_k)} times greedy's time, beam search "
        f"{write_ratio(beam)}, with the model inside; `bench sampling` has more",
        1 < top_k < beam,
    )


def check_mixed(facts: AdviceFacts) -> RuleCheck:
    bits = (24 * 8 + 6 * 16) / 30
    mixed, int4 = count_weight_bytes(facts.params, bits), count_weight_bytes(facts.params, 4)
    return RuleCheck(
        f"(24 × 8 + 6 × 16) ÷ 30 = {bits:g} bits: {write_gb(mixed)}, not {write_gb(int4)}", False
    )


RULES: Sequence[AdviceRule] = (
    AdviceRule("INT4 first", "S1, S2", "INT4 for immediate gains: 2 to 4 times faster", check_int4),
    AdviceRule(
        "continuous batching", "S1", "next, for many users: more throughput", check_batching,
        frozenset(("chat", "bulk", "rag")),
    ),
    AdviceRule(
        "speculation", "S1", "for a single user who wants low latency", check_speculation,
        frozenset(("chat", "quality")),
    ),
    AdviceRule(
        "INT8", "S2", "with 24 to 32 GB, where quality matters", check_int8,
        frozenset(("bulk", "quality")),
    ),
    AdviceRule(
        "batch size", "S2", "4 to 8 at the edge", check_batch_size,
        frozenset(("bulk", "cheap", "rag")),
    ),
    AdviceRule("headroom", "S2", "at most 80 % of the memory", check_headroom),
    AdviceRule(
        "GPU or CPU", "S2", "a CPU below 100 requests a day, a GPU above 1,000", check_cpu,
        frozenset(("chat", "bulk", "cheap")),
    ),
    AdviceRule("edge", "S2", "always a GPU if there is one", check_edge),
    AdviceRule(
        "cloud or edge", "S2", "cloud below 5,000 queries a day, edge above 10,000", check_cloud,
        frozenset(("bulk", "cheap")),
    ),
    AdviceRule(
        "shots", "S2", "zero-shot for speed; few-shot takes twice the time", check_shots,
        frozenset(("chat", "cheap", "rag")),
    ),
    AdviceRule("ways to choose", "S2", "greedy for speed, top-k for balance", check_ways),
    AdviceRule(
        "mixed precision", "S2", "24 layers INT8, 6 FP16: the memory of INT4", check_mixed,
        frozenset(("quality",)),
    ),
)  # fmt: skip
