"""Tensor and pipeline parallelism: the time of one step, split over GPUs, by counting.

Invariant: the pipeline's bubble is (p - 1) / (m + p - 1) for p stages and m micro-batches (Huang et
al., 2019, GPipe; Narayanan et al., 2021, Megatron-LM).  Columns of QKV and of gate and up, rows of
the output and down projections are split as in Megatron-LM (Shoeybi et al., 2019): a layer has two
all-reduces.  A model of what a step costs at least; nothing is measured.
"""

from dataclasses import dataclass

from flyweight.spec import ModelSpec

BYTES = 2  # of an activation between GPUs
REDUCES = 2  # of a layer, in the forward pass


@dataclass(frozen=True, slots=True)
class GpuLink:
    """What a GPU does in a second, in bytes and operations, and between GPUs: bytes a second in one
    direction, and seconds that a transfer takes at least.
    """

    read: float
    peak: float
    link: float
    latency: float
    memory: float


@dataclass(frozen=True, slots=True)
class StepLoad:
    """A step of `tokens` tokens; weights take `nbytes`, and a token `operations`."""

    tokens: int
    nbytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class Split:
    """`tp` GPUs share each layer, `pp` groups of them have layers of their own, and the step's
    tokens are cut into `micro` parts.
    """

    tp: int
    pp: int
    micro: int

    @property
    def bubble(self) -> float:
        """The share of time that a stage waits: (p - 1) / (m + p - 1)."""
        return (self.pp - 1) / (self.micro + self.pp - 1)


@dataclass(frozen=True, slots=True)
class SplitCost:
    """Seconds of a step; `reduce` are all its all-reduces, on the longest way through."""

    split: Split
    seconds: float
    reduce: float
    weights: float  # bytes a GPU


def list_splits(gpus: int, spec: ModelSpec, tokens: int) -> list[Split]:
    """Every way to use all GPUs: tp divides heads and what they store, pp has layers enough."""
    found = []
    for tp in list_tensor_sizes(gpus, spec):
        pp = gpus // tp
        if pp > len(spec.layers):
            continue
        parts = {1, pp, 2 * pp, 4 * pp} if pp > 1 else {1}
        found += [Split(tp, pp, m) for m in sorted(parts) if m <= tokens]
    return found


def list_tensor_sizes(gpus: int, spec: ModelSpec) -> list[int]:
    """Divisors of `gpus` that divide the query heads of every layer and its inner elements."""
    return [
        tp
        for tp in range(1, gpus + 1)
        if gpus % tp == 0
        and all(layer.heads % tp == 0 and layer.inner % tp == 0 for layer in spec.layers)
    ]


def compute_cost(split: Split, spec: ModelSpec, load: StepLoad, gpu: GpuLink) -> SplitCost:
    """A stage reads its weights and computes for each micro-batch; m + p - 1 of these follow each
    other.  Between stages goes the residual of a micro-batch.
    """
    layers = -(-len(spec.layers) // split.pp)  # of the longest stage
    share = layers / len(spec.layers) / split.tp
    tokens = -(-load.tokens // split.micro)
    work = max(load.nbytes * share / gpu.read, load.operations * tokens * share / gpu.peak)
    message = tokens * spec.hidden * BYTES
    reduce = REDUCES * layers * compute_all_reduce(message, split.tp, gpu)
    send = (message / gpu.link + gpu.latency) if split.pp > 1 else 0.0
    rounds = split.micro + split.pp - 1
    return SplitCost(split, rounds * (work + reduce + send), rounds * reduce, load.nbytes * share)


def compute_all_reduce(nbytes: float, tp: int, gpu: GpuLink) -> float:
    """Of a ring: each GPU sends 2 (tp - 1) / tp of the bytes, in 2 (tp - 1) turns."""
    if tp == 1:
        return 0.0
    turns = 2 * (tp - 1)
    return turns / tp * nbytes / gpu.link + turns * gpu.latency
