"""One sequence's sampling options, packed once, so that a step only copies them.

Invariant: a record holds every option that declares a column, in the order of `LAYOUT`;
`read_unpacked` reads those of the column `cuts`, in the order of `wire.CutRow`.  Standard library
only; knows no arrays and no step.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from flyweight.params.options import RealOption
from flyweight.types import ALL, CUTS, OPTIONS, RequestWords, SamplingParams

WORD = 2**64 - 1
MOST = 2**31 - 1  # of a whole number: above any vocabulary and context, so the same as all
PACKED = {name: one for name, one in OPTIONS.items() if one.column not in ("", "cuts")}
UNPACKED = tuple(name for name, one in OPTIONS.items() if one.column == "cuts")
RARE = tuple(name for name in UNPACKED if name in CUTS)
CODES = {name: "f" if isinstance(one, RealOption) else "i" for name, one in PACKED.items()}
# Columns of a record: the code of a value in a struct, and how many values a row has.
LAYOUT: dict[str, tuple[str, int]] = {
    column: (CODES[names[0]], len(names))
    for column, group in groupby(PACKED, lambda name: PACKED[name].column)
    if (names := list(group))
} | {"logprobs": ("i", 1), "choice": ("i", 1), "prompt": ("i", 1), "seed": ("Q", 1)}
RECORD = struct.Struct("=" + "".join(code * count for code, count in LAYOUT.values()))
read_packed, read_unpacked = attrgetter(*PACKED), attrgetter(*UNPACKED)
NO_WORDS = RequestWords()


@dataclass(slots=True, eq=False)
class SequenceOptions:
    """How the tokens of choice `choice` of a request are chosen.  `prompt` is how many of its
    tokens are the caller's; `stop_ids` may not be drawn before the params' min_tokens.  `plain`
    options need nothing but their record; `edited` rows go through functions of the caller's;
    `constrained` ones to a grammar;
    `drafts` says whether draft tokens can be judged, which takes options without a state that a
    draw changes and without such functions.  `best` is how many best log-probabilities are wanted
    of each row; where a search needs more than the params request, it decides what follows.
    """

    params: SamplingParams
    seed: int
    choice: int
    prompt: int
    stop_ids: Collection[int] = ()
    words: RequestWords = NO_WORDS
    best: int | None = None
    penalised: bool = field(init=False)
    dry: bool = field(init=False)
    cut: bool = field(init=False)
    plain: bool = field(init=False)
    edited: bool = field(init=False)
    drafts: bool = field(init=False)
    constrained: bool = field(init=False)
    record: bytes = field(init=False)

    def __post_init__(self) -> None:
        p = self.params
        penalties = p.repetition_penalty, p.presence_penalty, p.frequency_penalty
        self.penalised = penalties != (1, 0, 0) and p.repeat_last_n != 0
        self.dry = p.dry_multiplier > 0 and p.dry_penalty_last_n != 0
        self.cut = bool(p.mirostat) or any(getattr(p, name) != CUTS[name] for name in RARE)
        lists = p.logit_bias or p.allowed_token_ids or self.words.bad or self.words.thought
        self.constrained = p.structured_outputs is not None
        special = self.penalised or self.dry or self.cut or self.constrained
        listed = p.logprob_token_ids or p.scored == ALL
        self.plain = not (special or lists or p.min_tokens or listed)
        self.edited = bool(p.logits_processors)
        self.drafts = not (p.mirostat or self.edited) and self.best is None
        if self.best is None:
            self.best = p.scored
        self.record = RECORD.pack(
            *[min(value, MOST) for value in read_packed(p)],
            # listed ids are looked up after the sampler, by what it returns of the best
            -1 if self.best is None else 1 if listed else self.best,
            self.choice,
            self.prompt if self.penalised else 0,
            self.seed & WORD,
        )
