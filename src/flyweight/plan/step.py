"""Bytes a step holds at its worst moment: arrays between ops, kernels' working memory, logits.

Invariant: an upper bound, kept in step with what it bounds: the arrays of models/attention.py,
models/feedforward.py and native/stack.h, the scratch of native/kv.h, native/experts.cpp and
native/sample.cpp.
tests/model/test_step_bytes.py and tests/api/test_memory_promise.py hold it to what is there.
"""

from collections.abc import Collection, Mapping, Sequence

from flyweight.ops.base import choose_rounding
from flyweight.spec import LayerSpec, ModelSpec, RouteSpec

FLOAT = 4
# Bytes an activation takes when `linear` has rounded it; 8-bit codes travel with scale and sums.
ROUNDED = {"int8": 1.5, "bf16": 2.0, "f32": 4.0}
SPLIT, MOST_RECORDS = 512, 1 << 17  # attention: positions of a split, records of splits kept apart
MOST_SHARED = 1 << 12  # rows of query heads that read a prefix together, two records each
# On a GPU: the first positions and their splits; query heads of prompt tokens with splits apart.
GPU_NEAR, GPU_SHORT, GPU_APART = 1024, 128, 128 * 132 // 2
SHARING = 8  # tokens of a sequence that reads with others, at most
TILE = 64  # positions of K and V widened at a time, at most
WAVE = 16  # rows sampled together
SEGMENT, HISTOGRAM = 16384, 1024 * (8 + 4) + 64  # ids of a row's part; bytes kept for each
APART = 64  # bytes per vocabulary entry of the row whose rarer cuts are made in NumPy
WAVE_BYTES, LEAST_WAVE = 16 << 20, 64  # experts: bytes, and pairs at least, worked on together
HUGE_PAGE = 2 << 20  # working memory grows by these
GPU_CANDIDATES = 2 * 2 * 8192 * 4  # bytes of a drawn row's lists
CANDIDATE = 2 * 8  # bytes a worker keeps per vocabulary entry: two lists of (logit, id)


def count_layer_bytes(
    spec: ModelSpec, kinds: Mapping[str, Sequence[tuple[tuple[int, ...], str]]], activations: str,
    tokens: int,
) -> int:  # fmt: skip
    """The most arrays alive at once in the forward pass of `tokens`, before logits."""
    layers = set(spec.layers)
    floats = max(
        max(_count_attention(spec.hidden, x), _count_feedforward(spec.hidden, x)) for x in layers
    )
    stacked = (
        0 if spec.norm.post else _count_stack(spec.hidden, layers)
    )  # post-norms run in finer ops
    floats = max(floats, stacked, spec.narrow + spec.hidden)
    # cos and sin, and the float64 angles they come from
    rotation = 6 * sum(rope.dim for rope in spec.ropes)
    alike = set(map(tuple, kinds.values()))  # a mixture has thousands of the same
    panels = max(_count_rounded(parts, activations) for parts in alike)
    panels = max(panels, *(_count_head_panels(x) for x in layers))
    mixtures = [x.moe for x in layers if x.moe is not None]
    experts = [count_experts_bytes(moe.route, spec.hidden, moe.inner, tokens) for moe in mixtures]
    return tokens * (FLOAT * (floats + rotation) + panels) + max(experts, default=0)


def _count_attention(hidden: int, layer: LayerSpec) -> int:
    """Floats of a token while attention runs."""
    if layer.latent is None:
        q, kv = layer.heads * layer.head, layer.kv.width
        normed = 2 * (q + kv) if layer.qk_norm == "centred" else 0  # a copy of q and k, its norm
        return 2 * hidden + (q + kv) + max(q, normed)  # x, residual, qkv, q
    latent, heads = layer.latent, layer.heads
    stored = latent.rope + latent.rank
    query = 2 * latent.plain + latent.rope + latent.rank  # queries, their plain parts, turned
    mixed = 2 * latent.rank + latent.value  # what attend gives, a copy of it, values
    # rotated and plain side by side, that and what is stored, q; what is stored, its norm, a copy
    row = heads * (query + 3 * stored + mixed) + 5 * stored
    return 3 * hidden + 2 * latent.q_rank + row


def _count_feedforward(hidden: int, layer: LayerSpec) -> int:
    """Floats of a token after attention, without `count_experts_bytes`: two x, residual, q,
    gate_up (or up alone), act, and what a shared expert says.
    """
    moe, before = layer.moe, 3 * hidden + layer.heads * layer.head
    if moe is None:
        return before + (2 + layer.gated) * layer.inner
    # where weights come first: an expert's input, and the sum of the experts before it
    given = hidden * min(2, moe.route.top) if moe.before else 0
    return before + max(given, hidden + 3 * moe.shared)


def _count_stack(hidden: int, layers: Collection[LayerSpec]) -> int:
    """Floats of a token while layers run in one native call (native/stack.h): residual, result,
    what a block reads, and two arrays as wide as the widest of any layer.
    """
    known = [x for x in layers if x.latent is None and x.moe is None]
    wide = [max(x.heads * x.head + x.kv.width, x.inner * (1 + x.gated)) for x in known]
    narrow = [max(x.heads * x.head, x.inner) for x in known]
    return 3 * hidden + max(wide, default=0) + max(narrow, default=0)


def _count_head_panels(layer: LayerSpec) -> int:
    """Bytes of a token's input to the matrices that heads have of their own, as floats at most."""
    if layer.latent is None:
        return 0
    return FLOAT * layer.heads * max(layer.latent.plain, layer.latent.rank)


def attend_bytes(layer: LayerSpec, tokens: int, sequences: int, context: int, threads: int) -> int:
    """Working memory of attention: tiles of every worker, and records: of splits computed apart
    when there are too few query tokens to go round, else of prefixes that sequences share.
    """
    group = layer.heads // layer.kv.heads
    item = max(1, TILE // group)  # query tokens of a work item
    rows, record = -(-item * group // 16) * 16, 32 + layer.kv.v_dim + 15
    worker = TILE * (layer.kv.k_dim + layer.kv.v_dim + 15) + rows * (layer.kv.k_dim + 2 * TILE + 2)
    worker += 2 * rows * record
    runs = (4 * threads - 1) // layer.kv.heads if threads > 1 else 0
    records = min(tokens, runs * item) * layer.heads * -(-context // SPLIT)
    sharing = min(tokens, SHARING * sequences) if sequences > 1 else 0
    shared = 2 * min(sharing * layer.heads, MOST_SHARED)
    return FLOAT * (threads * worker + max(min(records, MOST_RECORDS), shared) * record)


def count_gpu_records(layer: LayerSpec, tokens: int, sequences: int, width: int) -> int:
    """Working memory of attention on a GPU (ops/cuda/attention.py): a result for each split of
    `width` positions and query head, of a decode step, which a graph keeps, and of as many prompt
    tokens as may have their splits computed side by side.
    """
    near = min(width, GPU_NEAR)
    splits = -(-near // GPU_SHORT) + -(-(width - near) // SPLIT)
    # steps are padded, by 3 rows to 5 at most
    decode = (8 * min(tokens, sequences) // 5) * layer.heads
    prompt = min(tokens * layer.heads, GPU_APART)
    return FLOAT * (decode + prompt) * splits * (layer.kv.v_dim + 2)


def count_experts_bytes(
    route: RouteSpec, hidden: int, inner: int, tokens: int, parts: int = 2
) -> int:
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


def count_exchange_bytes(spec: ModelSpec, tokens: int, rows: int, ranks: int) -> int:
    """What collectives of several ranks add: every rank's array of a sum, and the parts of the
    logits, each in a copy of gloo's too, and the logits joined.
    """
    if ranks == 1:
        return 0
    return FLOAT * max(2 * ranks * tokens * spec.hidden, 3 * rows * spec.vocab)


def sample_bytes(vocab: int, rows: int, threads: int) -> int:
    """Logits of `rows`, their adjusted copies and histograms a wave at a time, every worker's
    candidates, and one row's arrays where it is drawn apart.
    """
    wave = min(rows, WAVE)
    histograms = wave * -(-vocab // SEGMENT) * HISTOGRAM
    return vocab * (FLOAT * (rows + wave) + CANDIDATE * threads + APART) + histograms


def gpu_sample_bytes(vocab: int, rows: int) -> int:
    """Logits of `rows`, a copy that a caller has edited and one that is edited here, how often each
    token was there; and the candidates of drawn rows.
    """
    return rows * (4 * FLOAT * vocab + GPU_CANDIDATES)


def _count_rounded(parts: Sequence[tuple[tuple[int, ...], str]], activations: str) -> int:
    """Bytes of one token's input to a weight, as its kernel reads it."""
    most = 0
    for shape, kind in parts:
        if len(shape) != 2:
            continue
        most = max(most, int(ROUNDED[choose_rounding(activations, kind)] * shape[1]) + 64)
    return most
