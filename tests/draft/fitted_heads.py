"""Heads for the small model, fitted to what it says by least squares, and the arithmetic that they
stand for in NumPy.
"""

from collections.abc import Sequence

import numpy as np
from small_engine import drain, make_engine, make_prompt_batch, make_requests
from test_taps_in_engine import alone

from flyweight.models.decoder import Decoder
from flyweight.wire import F32

Block = tuple[F32, F32]  # W [H,H], b [H]
Heads = list[tuple[list[Block], F32]]  # blocks and the output matrix [V,H] of each


def states_of(model: Decoder, tokens: Sequence[int]) -> F32:
    """The final hidden state of every token: [T,H]."""
    engine = make_engine(model)
    batch = make_prompt_batch(tokens)
    _, found = model.compute_tapped(batch, engine.runner.kv, batch.rows, (-1,))  # type: ignore[attr-defined]
    return np.asarray(found[-1])


def fit_heads(model: Decoder, prompts: Sequence[Sequence[int]], count: int = 3) -> Heads:
    """Heads that know what the model says after these prompts."""
    answers = drain(make_engine(model), make_requests(prompts))
    texts = [[*prompts[int(id[1:])], *tokens] for (id, _), tokens in answers.items()]
    rng = np.random.default_rng(7)
    made: Heads = []
    for i in range(count):
        block = rng.normal(0, 0.1, (32, 32)).astype(np.float32), np.full(32, 0.05, np.float32)
        inputs, wanted = [], []
        for text in texts:
            states = push(states_of(model, text), [block])[: len(text) - 2 - i]
            inputs.append(states)
            wanted.append(np.eye(40, dtype=np.float32)[text[2 + i :]])
        head, *_ = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(wanted), rcond=None)
        made.append(([block], head.T.astype(np.float32).copy()))
    return made


def push(x: F32, blocks: Sequence[Block]) -> F32:
    """x through blocks x + silu(Wx + b)."""
    for w, b in blocks:
        y = x @ w.T + b
        x = x + y / (1 + np.exp(-y))
    return x


def guess(model: Decoder, heads: Heads, tokens: Sequence[int]) -> list[int]:
    """What each head says of a text whose newest token is not computed."""
    state = alone(model, tokens[:-1], (-1,))[-1]
    return [int(np.argmax(head @ push(state, blocks))) for blocks, head in heads]
