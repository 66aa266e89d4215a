"""What a request may want of a prompt other than sampled text.

Invariant: params that exist are valid.  Frozen data, standard library only.
"""

from dataclasses import dataclass

from flyweight.errors import RequestError, nearest
from flyweight.validation.ranges import number, require, whole

POOLINGS = ("last", "mean", "cls")


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a prompt's hidden states become one vector: the `last` token's, the `mean` of all, or the
    first's (`cls`, which in a decoder has seen nothing but itself); of length 1 where
    `normalize`.  Raises `RequestError`.
    """

    pooling: str = "last"
    normalize: bool = True

    def __post_init__(self) -> None:
        kind = self.pooling if isinstance(self.pooling, str) else repr(self.pooling)
        if kind not in POOLINGS:
            raise RequestError(
                "is not valid",
                "pooling",
                value=self.pooling,
                allowed=f"{', '.join(POOLINGS)}{nearest(kind, POOLINGS)}",
            )
        flag = self.normalize
        require(isinstance(flag, bool), "normalize", flag, "true or false")


MAX_BEAMS = 32
MAX_CANDIDATES = 64  # best continuations of one beam: what the sampling kernel keeps
EARLY: tuple[bool | str, ...] = (True, False, "never")


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How to search: vLLM's name and fields, transformers' meanings (`num_beams`, `length_penalty`,
    `early_stopping`).  Every beam is an answer, best first.  `max_tokens` None means up to the
    context's end.  `temperature` is 0: a search draws nothing.  Raises `RequestError`.
    """

    beam_width: int = 4
    max_tokens: int | None = 16
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "beam_width", whole("beam_width", self.beam_width, 1, MAX_BEAMS))
        if self.max_tokens is not None:
            object.__setattr__(self, "max_tokens", whole("max_tokens", self.max_tokens, 1, None))
        penalty = number("length_penalty", self.length_penalty)
        near = min(max(penalty, -10.0), 10.0)
        require(-10 <= penalty <= 10, "length_penalty", penalty, "-10 to 10", near)
        object.__setattr__(self, "length_penalty", penalty)
        heat = number("temperature", self.temperature)
        require(heat == 0, "temperature", heat, "0: a search draws nothing", 0.0)
        early = self.early_stopping
        allowed = 'true, false or "never"'
        known = isinstance(early, bool) or early == "never"
        require(known, "early_stopping", early, allowed, "'never'" if early else None)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            flag = getattr(self, name)
            require(isinstance(flag, bool), name, flag, "true or false")

    def check_ends(self, ends: int, vocab: int) -> None:
        """Whether a model's vocabulary, `ends` of which end a sequence, has enough continuations:
        so many go on, and each end is considered in addition to them.
        """
        most = min(MAX_CANDIDATES, vocab) - ends
        require(
            self.beam_width <= most,
            "beam_width",
            self.beam_width,
            f"1 to {most} (with {ends} ends among {vocab} tokens)",
            most,
        )
