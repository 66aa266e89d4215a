"""What a caller gets back: vLLM's names, with timings and cached-token counts on every result.

Data only.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate at one position: its raw log-probability, its rank (1 = most likely), its
    text.
    """

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice.  `delta` is the text that is new since the last output of a stream.
    `finish_reason` is "stop", "length", "abort" or None while running; `stop_reason` the stop
    string or the id of `stop_token_ids` that ended it, None where it was the model's own end.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    delta: str = ""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Seconds: `queued` before the first step, `ttft` from arrival to the first token, `total` from
    arrival to the newest token; `decode_rate` tokens per second after the first, over all choices.
    """

    queued: float = 0.0
    ttft: float = 0.0
    total: float = 0.0
    decode_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's result so far; `finished` when every choice has ended."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
