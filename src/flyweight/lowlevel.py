"""The model and its K/V by hand: `prefill`, `decode_step`, `generate`, for one sequence.

Invariant: K/V is valid for the `length` tokens seen since the last `prefill`.  No scheduler, no
prefix cache, no sampling: what the engine does for many, in the fewest words, on the same kernels;
so its tokens are the engine's greedy ones.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from flyweight.build import build
from flyweight.config import Settings
from flyweight.engine.runner import Runner
from flyweight.errors import ConfigError, RequestError
from flyweight.requests.prompts import Prompt, PromptReader, RequestContext
from flyweight.sampling.arrays import columns
from flyweight.types import SamplingParams
from flyweight.validation.ranges import whole
from flyweight.wire import F32, I32, Batch

GREEDY = SamplingParams(temperature=0)
# settings that would change nothing here
FOR_MANY = {"adapters", "max_num_seqs", "speculative_config"}


class KVCacheModel:
    """One sequence on a model of its own; `model` and settings are `LLM`'s.  `logits` [V] are those
    after the newest token.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        for name in sorted(FOR_MANY & set(settings)):
            raise ConfigError(
                f"{name} is for many requests; KVCacheModel has one sequence: use LLM"
            )
        chosen = Settings.of(model=model, max_num_seqs=1, **settings)
        if chosen.ranks > 1:
            raise ConfigError("KVCacheModel computes in one process; use LLM for several ranks")
        self.loaded = build(chosen)
        limits = self.loaded.limits
        self.tokenizer = self.loaded.tokenizer
        self._reader = PromptReader(self.tokenizer, self.loaded.spec.vocab, limits.max_model_len)
        self._table: I32 = np.arange(limits.blocks, dtype=np.int32)  # the only sequence
        self.length = 0
        self.logits: F32 = np.zeros(0, np.float32)

    def prefill(self, prompt: Prompt) -> F32:
        """Computes the whole prompt (text or token ids) anew; the logits after its last token."""
        tokens = self._reader.read(prompt, GREEDY, RequestContext()).tokens
        self.length = 0
        most = self.loaded.limits.max_num_batched_tokens
        for start in range(0, len(tokens), most):
            self._forward(tokens[start : start + most])
        return self.logits

    def decode_step(self, token: int) -> int:
        """Computes one more token; returns the likeliest after it.  Raises `RequestError` before
        `prefill`, at the context's end, and for an id outside the vocabulary.
        """
        longest, vocab = self.loaded.limits.max_model_len, self.loaded.spec.vocab
        if not self.length:
            raise RequestError(
                "decode_step before prefill: there is no K/V yet; call prefill(prompt) first"
            )
        if self.length >= longest:
            raise RequestError(
                f"decode_step: the context is full ({self.length} tokens, max_model_len = "
                f"{longest}); call prefill(prompt) to start again"
            )
        if not 0 <= token < vocab:
            raise RequestError("is out of range", "token", value=token, allowed=f"0 to {vocab - 1}")
        self._forward([token])
        return int(self.logits.argmax())

    def generate(self, prompt: Prompt, max_new_tokens: int = 100) -> str:
        """The likeliest continuation, token by token, up to the model's own end."""
        max_new_tokens = whole("max_new_tokens", max_new_tokens, 1, None)
        token = int(self.prefill(prompt).argmax())
        made = [token]
        left = self.loaded.limits.max_model_len - self.length
        while len(made) < min(max_new_tokens, left) and token not in self.loaded.stop_ids:
            token = self.decode_step(token)
            made.append(token)
        return self.tokenizer.decode([t for t in made if t not in self.loaded.stop_ids])

    def _forward(self, tokens: Sequence[int]) -> None:
        """Writes the tokens' K/V after what is there."""
        if self.length:
            self.loaded.moving.step()
        runner, size = self.loaded.engine.runner, self.loaded.limits.block_size
        assert isinstance(runner, Runner)
        count, context = len(tokens), self.length + len(tokens)
        positions = np.arange(self.length, context, dtype=np.int32)
        table = self._table[: -(-context // size)]
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            positions=positions,
            slots=table[positions // size] * size + positions % size,
            starts=np.array([0, count], np.int32),
            contexts=np.array([context], np.int32),
            tables=table[None],
            rows=np.array([count - 1], np.int32),
            sampling=columns([]),
        )
        hidden = runner.model.compute_hidden(batch, runner.kv, batch.rows)  # [1, H]
        self.logits = runner.ops.fetch(runner.model.compute_logits(hidden))[0]
        self.length = context
