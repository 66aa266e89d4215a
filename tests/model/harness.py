"""Small models for tests: a fixture directory to a `Decoder`, whole-prompt logits, and batches of
any mix of sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.models.adapters import pack_adapter
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.spec import Files, ModelSpec, WeightPlan
from flyweight.types import SamplingParams
from flyweight.weights.adapter import open_adapter
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.load import load
from flyweight.wire import F32, Batch

MODELS = Path(__file__).parents[1] / "data" / "models"
BLOCK = 16
SpecChange = Callable[[ModelSpec], ModelSpec]
PlanChange = Callable[[WeightPlan], WeightPlan]
Weights = dict[str, Any]


def decoder(
    path: Path,
    ops: Ops,
    config: Mapping[str, Any] | None = None,
    change: SpecChange | None = None,
    plan: PlanChange | None = None,
    weights: Callable[[Weights], None] | None = None,
    length: int = 0,
    adapters: Sequence[Path] = (),
) -> Decoder:
    """Loads a model that runs `length` tokens, by default what its config says.

    To switch features off, `config` overrides keys of its config.json, `change` edits the spec once
    weights are planned, `plan` the weight plan, and `weights` what was loaded.
    """
    checkpoint = open_checkpoint(path)
    kind = find_family(checkpoint.config)
    spec = kind.read_spec({**checkpoint.config, **(config or {})})
    files = Files(checkpoint.converted, frozenset(checkpoint.tensors), checkpoint.joined)
    planned = kind.plan(spec, files)
    loaded: Weights = dict(load(checkpoint, (plan or (lambda p: p))(planned), ops, None))
    if weights:
        weights(loaded)
    published = kind.plan(spec, Files())
    low = [pack_adapter(open_adapter(folder), published, ops) for folder in adapters]
    return Decoder(
        Parts(ops, SingleProcess(), (change or (lambda s: s))(spec), loaded, low),
        length or spec.context,
    )


def sampling(rows: int) -> Any:
    params = SamplingParams(temperature=0, max_tokens=1)
    row = LogitsRow(SequenceOptions(params, seed=0, choice=0, prompt=1), position=1, tokens=(0,))
    return columns([row] * rows)


def batch(parts: Sequence[tuple[np.ndarray, int]], total: int, rows: np.ndarray) -> Batch:
    """Chunks (tokens, first position) of sequences of up to `total` tokens; blocks are numbered
    backwards so that order is never luck.  `rows` count through all chunks' tokens.
    """
    blocks = -(-total // BLOCK)
    tables = np.arange(blocks * len(parts), 0, -1, dtype=np.int32).reshape(len(parts), blocks)
    counts = [len(tokens) for tokens, _ in parts]
    begins = [at for _, at in parts]
    positions = np.concatenate([at + np.arange(n) for at, n in zip(begins, counts, strict=True)])
    owner = np.repeat(np.arange(len(parts)), counts)
    slots = tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    return Batch(
        tokens=np.concatenate([tokens for tokens, _ in parts]).astype(np.int32),
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        starts=np.cumsum([0, *counts], dtype=np.int32),
        contexts=np.add(begins, counts, dtype=np.int32),
        tables=tables,
        rows=rows.astype(np.int32),
        sampling=sampling(len(rows)),
    )


def memory(model: Decoder, total: int, sequences: int = 1, kv: str = "f32") -> list[Any]:
    blocks = -(-total // BLOCK) * sequences + 1
    return [model.ops.make_kv_layer(x.kv, blocks, BLOCK, kv) for x in model.spec.layers]


def logits_of(model: Decoder, step: Batch, kv: Sequence[Any]) -> F32:
    """One step's logits [R, V]."""
    return model.compute_logits(model.compute_hidden(step, kv, step.rows))


def logits(
    model: Decoder, tokens: np.ndarray, rows: np.ndarray, kv: str = "f32", chunk: int = 10**6
) -> F32:
    """Logits [rows, V] of a prompt computed in chunks."""
    layers = memory(model, len(tokens), 1, kv)
    out = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        wanted = rows[(rows >= start) & (rows < start + chunk)] - start
        out.append(logits_of(model, batch([(part, start)], len(tokens), wanted), layers))
    return np.concatenate(out)


def decoded(model: Decoder, tokens: np.ndarray, first: int) -> F32:
    """Logits of the tokens from `first` on, computed one at a time after the others: [n, V]."""
    layers = memory(model, len(tokens))
    logits_of(model, batch([(tokens[:first], 0)], len(tokens), np.zeros(0)), layers)
    last = np.zeros(1)
    steps = range(first, len(tokens))
    return np.concatenate(
        [
            logits_of(model, batch([(tokens[i : i + 1], i)], len(tokens), last), layers)
            for i in steps
        ]
    )


def mixed(model: Decoder, tokens: np.ndarray, rows: np.ndarray) -> tuple[F32, np.ndarray]:
    """Logits of the last token of each part of one batch that has everything in it: a whole
    prompt, chunks after others, decodes.  With them, the index in `rows` of each.
    """
    total, last = len(tokens), len(rows) - 1
    which = np.array([last - 1, last, last, last // 2, 4])
    upto = rows[which] + 1
    done = np.array([0, total // 2, upto[2] - 1, upto[3] - 1, 3])  # known before the step
    layers = memory(model, total, len(done))
    nothing = [(tokens[:at] if at else tokens[:1], 0) for at in done]
    logits_of(model, batch(nothing, total, np.zeros(0)), layers)
    parts = [(tokens[at:end], int(at)) for at, end in zip(done, upto, strict=True)]
    ends = np.cumsum(upto - done) - 1
    return logits_of(model, batch(parts, total, ends), layers), which
