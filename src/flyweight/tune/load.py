"""The load that settings are tuned for: users who each send a request when the one before is
answered.

Invariant: a load of a given size is the same for every candidate; prompts are random tokens, so
that only what they share by design is found in the prefix cache.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from flyweight.bench.serving.traces import BLOCK, TraceRequest, read_trace
from flyweight.bench.workloads import make_ids
from flyweight.errors import ConfigError, nearest
from flyweight.validation.ranges import whole

MOST_USERS = 1024
SPARE = 8  # tokens of the context that are left free
ROUNDS = 2  # requests of a user in the least load


@dataclass(frozen=True, slots=True)
class LoadPreset:
    """Tokens of a prompt, of the beginning that all prompts share, and of an answer; users."""

    prompt: int
    shared: int
    output: int
    users: int


# A workload by name is one row.
PRESETS = {
    "chat": LoadPreset(prompt=256, shared=96, output=128, users=8),
    "rag": LoadPreset(prompt=1500, shared=1000, output=128, users=4),
    "bulk": LoadPreset(prompt=256, shared=0, output=64, users=64),
}


@dataclass(frozen=True, slots=True)
class TuningRequest:
    ids: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class TuningLoad:
    """Requests without end, sent by `users` in turn.  `scaled` says how the lengths of a preset or
    a trace were shortened for the model's context; empty where they were not.
    """

    name: str
    users: int
    lengths: tuple[TraceRequest, ...]
    vocab: int
    shared: int = 0
    scaled: str = ""

    @property
    def prompt(self) -> int:
        """Tokens of a prompt, on average."""
        return sum(one.input for one in self.lengths) // len(self.lengths)

    @property
    def output(self) -> int:
        return sum(one.output for one in self.lengths) // len(self.lengths)

    @property
    def longest(self) -> int:
        return max(one.input + one.output for one in self.lengths)

    @property
    def fingerprint(self) -> str:
        """Of what decides the requests: a trace of the same name may have others."""
        parts = repr((self.lengths, self.vocab, self.shared))
        return sha256(parts.encode()).hexdigest()[:32]

    def make_requests(self, size: int) -> list[TuningRequest]:
        """`size` times the least load."""
        count = ROUNDS * self.users * size
        return [*islice(self._draw_requests(), count)]

    def _draw_requests(self) -> Iterator[TuningRequest]:
        number = 0
        while True:
            for one in self.lengths:
                yield TuningRequest(tuple(self._make_prompt(one, number)), one.output)
                number += 1

    def _make_prompt(self, one: TraceRequest, number: int) -> list[int]:
        ids = make_ids(self.vocab, self.shared, 7)
        for block in one.blocks:  # blocks that a trace says were shared
            ids += make_ids(self.vocab, BLOCK, (block << 8) + 3)
        ids += make_ids(self.vocab, max(0, one.input - len(ids)), (number << 8) + 5)
        return ids[: one.input]


def make_load(named: str, users: int | None, vocab: int, context: int) -> TuningLoad:
    """The load of a preset, or of a trace (.csv as Azure's, .jsonl as Mooncake's).  Raises
    `ConfigError`.
    """
    if users is not None:
        whole("users", users, 1, MOST_USERS)
    path = Path(named)
    if path.suffix in (".csv", ".jsonl"):
        return _read_load(path, users or PRESETS["chat"].users, vocab, context)
    if named not in PRESETS:
        raise ConfigError(
            "is not a workload" + nearest(named, PRESETS),
            "workload",
            value=named,
            allowed=f"{', '.join(PRESETS)}, or a trace: a .csv or .jsonl file",
        )
    preset = PRESETS[named]
    share = min(1.0, (context - SPARE) / (preset.prompt + preset.output))
    lengths = [max(1, int(share * n)) for n in (preset.prompt, preset.shared, preset.output)]
    one = TraceRequest(0.0, lengths[0], lengths[2])
    scaled = "" if share == 1 else (
        f"prompts of {lengths[0]} and answers of {lengths[2]} tokens: the model's context of "
        f"{context} holds no {preset.prompt} + {preset.output}"
    )  # fmt: skip
    return TuningLoad(
        named, users or preset.users, (one,), vocab, lengths[1] * bool(preset.shared), scaled
    )


def _read_load(path: Path, users: int, vocab: int, context: int) -> TuningLoad:
    if not path.is_file():
        raise ConfigError("is not a file", "workload", value=str(path))
    rows = [*islice(read_trace(path), 2000)]
    fit = [one for one in rows if one.input + one.output <= context - SPARE]
    if not fit:
        raise ConfigError(
            f"{path}: no request of the first {len(rows)} fits the model's context of {context}"
        )
    chosen = random.Random(0).sample(fit, min(len(fit), 256))
    scaled = "" if len(fit) == len(rows) else (
        f"{len(rows) - len(fit)} of {len(rows)} requests are longer than the model's context"
    )  # fmt: skip
    return TuningLoad(path.name, users, tuple(chosen), vocab, 0, scaled)
