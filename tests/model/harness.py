"""Small models for tests: a fixture directory to a `Decoder`, whole-prompt logits, and an engine
around it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.models.decoder import Decoder, Solo
from flyweight.models.registry import family
from flyweight.ops.base import Ops
from flyweight.sampling.arrays import Row, columns
from flyweight.sampling.options import Options
from flyweight.spec import Files, ModelSpec
from flyweight.types import SamplingParams
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.load import load
from flyweight.wire import F32, Batch

MODELS = Path(__file__).parents[1] / "data" / "models"
Change = Callable[[ModelSpec], ModelSpec]


def decoder(
    path: Path,
    ops: Ops,
    config: Mapping[str, Any] | None = None,
    change: Change | None = None,
    length: int = 0,
) -> Decoder:
    """Loads a model; `config` overrides keys of its config.json, `change` edits the spec (both to
    switch features off); it runs `length` tokens, by default what its config says.
    """
    checkpoint = open_checkpoint(path)
    kind = family(checkpoint.config)
    spec = kind.spec({**checkpoint.config, **(config or {})})
    plan = kind.plan(spec, Files(checkpoint.converted, frozenset(checkpoint.tensors)))
    weights = load(checkpoint, plan, ops, None)
    return Decoder((change or (lambda s: s))(spec), weights, ops, Solo(), length or spec.context)


def sampling(rows: int) -> Any:
    params = SamplingParams(temperature=0, max_tokens=1)
    row = Row(Options(params, seed=0, choice=0, prompt=1), position=1, tokens=(0,))
    return columns([row] * rows)


def batch(tokens: np.ndarray, start: int, total: int, rows: np.ndarray, block: int = 16) -> Batch:
    """One sequence's chunk: `tokens` at positions start.., blocks numbered backwards so that order
    is never luck.
    """
    count = len(tokens)
    blocks = -(-total // block)
    table = np.arange(blocks, 0, -1, dtype=np.int32)[None]
    positions = np.arange(start, start + count, dtype=np.int32)
    slots = table[0, positions // block] * block + positions % block
    return Batch(
        tokens=tokens.astype(np.int32),
        positions=positions,
        slots=slots.astype(np.int32),
        starts=np.array([0, count], np.int32),
        contexts=np.array([start + count], np.int32),
        tables=table,
        rows=rows.astype(np.int32),
        sampling=sampling(len(rows)),
    )


def logits(
    model: Decoder, tokens: np.ndarray, rows: np.ndarray, kv: str = "f32", chunk: int = 10**6
) -> F32:
    """Logits [rows, V] of a prompt computed in chunks."""
    total, block = len(tokens), 16
    layers = [model.ops.kv_layer(x.kv, total // block + 2, block, kv) for x in model.spec.layers]
    out = []
    for start in range(0, total, chunk):
        part = tokens[start : start + chunk]
        wanted = rows[(rows >= start) & (rows < start + chunk)] - start
        got = model.forward(batch(part, start, total, wanted, block), layers)
        out.append(got)
    return np.concatenate(out)
