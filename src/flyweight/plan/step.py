"""Bytes a step holds at its worst moment: arrays between ops, kernels' working memory, logits.

Invariant: an upper bound, kept beside what it bounds: models/decoder.py's arrays, native/kv.h's
scratch, native/sample.cpp's.  tests/api/test_memory_promise.py holds it to measured memory.
"""

from collections.abc import Mapping, Sequence

from flyweight.ops.base import rounding
from flyweight.spec import LayerSpec, ModelSpec, RouteSpec

FLOAT = 4
# Bytes an activation takes when `linear` has rounded it; 8-bit codes travel with scale and sums.
ROUNDED = {"int8": 1.5, "bf16": 2.0, "f32": 4.0}
SPLIT, MOST_RECORDS = 512, 1 << 17  # attention: positions of a split, records of splits kept apart
TILE = 64  # positions of K and V widened at a time, at most
WAVE = 16  # rows sampled together
SEGMENT, HISTOGRAM = 16384, 1024 * (8 + 4) + 64  # ids of a row's part; bytes kept for each
APART = 64  # bytes per vocabulary entry of the row whose rarer cuts are made in NumPy
WAVE_BYTES, LEAST_WAVE = 16 << 20, 64  # experts: bytes, and pairs at least, worked on together
HUGE_PAGE = 2 << 20  # working memory grows by these
CANDIDATE = 2 * 8  # bytes a worker keeps per vocabulary entry: two lists of (logit, id)


def layer_bytes(
    spec: ModelSpec, kinds: Mapping[str, Sequence[tuple[tuple[int, ...], str]]], activations: str,
    tokens: int,
) -> int:  # fmt: skip
    """The most arrays alive at once in the forward pass of `tokens`, before logits."""
    layer = max(spec.layers, key=lambda x: x.inner)
    q, kv = layer.heads * layer.head, layer.kv.heads * (layer.kv.k_dim + layer.kv.v_dim)
    attention = 2 * spec.hidden + (q + kv) + q  # x, residual, qkv, q
    mlp = 3 * spec.hidden + q + 3 * layer.inner  # two x, residual, q, gate_up, act
    # cos and sin, and the float64 angles they come from
    rotation = 6 * sum(rope.dim for rope in spec.ropes)
    panels = max(_rounded(parts, activations) for parts in kinds.values())
    return tokens * (FLOAT * (max(attention, mlp) + rotation) + panels)


def attend_bytes(layer: LayerSpec, tokens: int, context: int, threads: int) -> int:
    """Working memory of attention: tiles of every worker, and splits computed apart when there are
    too few query tokens to go round.
    """
    group = layer.heads // layer.kv.heads
    item = max(1, TILE // group)  # query tokens of a work item
    rows, record = item * group, 32 + layer.kv.v_dim + 15
    worker = TILE * (layer.kv.k_dim + layer.kv.v_dim + 15) + rows * (layer.kv.k_dim + TILE + 1)
    worker += 32 + 2 * rows * record
    runs = (4 * threads - 1) // layer.kv.heads if threads > 1 else 0
    records = min(tokens, runs * item) * layer.heads * -(-context // SPLIT)
    return FLOAT * (threads * worker + min(records, MOST_RECORDS) * record)


def experts_bytes(route: RouteSpec, hidden: int, inner: int, tokens: int, parts: int = 2) -> int:
    """What routing and mixing experts of `inner` elements adds to the arrays between ops: router
    logits, choices, the answers of all pairs (token, choice), one wave of pairs at work; `parts`
    is how many kinds gate and up may come in.
    """
    pairs = tokens * route.top
    pair = FLOAT * (3 * inner + max(parts * hidden, inner))  # gate, up, product, the rounded input
    wave = min(pairs * pair, max(WAVE_BYTES, LEAST_WAVE * pair))
    lists = 4 * FLOAT * pairs + 1024 * route.experts  # ids, weights, order; the products' jobs
    arrays = tokens * FLOAT * (route.experts + hidden)  # router logits, the sum
    return FLOAT * pairs * hidden + wave + lists + arrays + HUGE_PAGE


def sample_bytes(vocab: int, rows: int, threads: int) -> int:
    """Logits of `rows`, their adjusted copies and histograms a wave at a time, every worker's
    candidates, and one row's arrays where it is drawn apart.
    """
    wave = min(rows, WAVE)
    histograms = wave * -(-vocab // SEGMENT) * HISTOGRAM
    return vocab * (FLOAT * (rows + wave) + CANDIDATE * threads + APART) + histograms


def _rounded(parts: Sequence[tuple[tuple[int, ...], str]], activations: str) -> int:
    """Bytes of one token's input to a weight, as its kernel reads it."""
    most = 0
    for shape, kind in parts:
        if len(shape) != 2:
            continue
        most = max(most, int(ROUNDED[rounding(activations, kind)] * shape[1]) + 64)
    return most
