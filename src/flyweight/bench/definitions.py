"""What each figure of a bench command means: the definitions that `--explain` prints.

The first four are those of the founding slides: time to first token, total latency, inter-token
latency and throughput; the others are as vLLM's benchmark has them.

Invariant: every command's figures are listed under the name it prints them by.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """A figure: the name it is printed by, its unit, and what it is."""

    name: str
    unit: str
    text: str


TTFT = Definition(
    "TTFT", "ms", "Time to first token: from sending the request to the first part of its answer."
)
ITL = Definition(
    "ITL", "ms",
    "Inter-token latency: time between two parts of an answer that follow each other. Every gap "
    "counts once; without streaming there is none, and it is not measurable.",
)  # fmt: skip
TPOT = Definition(
    "TPOT", "ms",
    "Time per output token after the first: (E2EL - TTFT) / (tokens - 1), once a request.",
)  # fmt: skip
E2EL = Definition(
    "E2EL", "ms", "End-to-end latency: from sending the request to the last part of its answer."
)
REQUESTS = Definition(
    "Request throughput", "requests/s", "Whole answers / seconds from the first request to the end."
)
OUTPUT = Definition(
    "Output token throughput", "tokens/s", "Tokens of whole answers / the same seconds."
)
TOTAL = Definition(
    "Total token throughput", "tokens/s", "Tokens of prompts and of whole answers / those seconds."
)
GOODPUT = Definition(
    "Request goodput", "requests/s",
    "Requests that met every goal of --goodput (TTFT, TPOT, E2EL) / those seconds.",
)  # fmt: skip
PERCENTILE = Definition(
    "P99", "ms", "99 % of the values are at most this; mean and median as usual."
)
SHARE = Definition(
    "share of limit", "%",
    "Least time of the test by the roofline / time taken. The roofline takes each op at its own "
    "limit, arithmetic or memory; limits are measured just before and after.",
)  # fmt: skip
RATIO = Definition(
    "ours ÷ it", "",
    "Our speed / this engine's, in rounds that take turns: the median, least and most of rounds.",
)  # fmt: skip

KERNELS = (
    Definition(
        "ppN", "tokens/s",
        "A prompt of N tokens: N / seconds until its first token is drawn. Without a server, TTFT "
        "is N / this.",
    ),
    Definition(
        "tgN", "tokens/s",
        "N tokens decoded one after another: N / seconds. ITL is 1000 / this, in ms. With bB, B "
        "sequences at once: tokens of all of them.",
    ),
    Definition(
        "GB/s", "10^9 B/s",
        "Bytes of weights in the file and of K/V that the test requires / time taken.",
    ),
    Definition("Gop/s", "10^9/s", "Operations that the test requires / time taken."),
    SHARE,
    RATIO,
)  # fmt: skip
THROUGHPUT = (
    Definition("requests/s", "", "Answered requests / seconds until the last is answered."),
    Definition("total tokens/s", "", "Tokens of prompts and answers / the same seconds."),
    Definition("output tokens/s", "", "Tokens of answers / the same seconds."),
    RATIO,
)
LATENCY = (
    Definition("Avg latency", "s", "Mean E2EL of a batch: from its start to its last token."),
    Definition("percentile latency", "s", "So many percent of the batches took at most this."),
    RATIO,
)
STARTUP = (
    Definition("first token", "s", "From the start of a new process to the first token written."),
    Definition("cold", "s", "The first start, which packs the weights and keeps them."),
    Definition("warm", "s", "A later start, which maps the packed weights: the median of several."),
    RATIO,
)
BY_COMMAND = {
    "kernels": KERNELS,
    "throughput": THROUGHPUT,
    "latency": LATENCY,
    "startup": STARTUP,
    "serve": (TTFT, ITL, TPOT, E2EL, REQUESTS, OUTPUT, TOTAL, GOODPUT, PERCENTILE),
}
