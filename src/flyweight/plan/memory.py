"""The memory promise: what a model will need, worked out before a tensor is read.

Invariant: `need` counts everything the process will hold at its worst moment: what it holds already
(interpreter, libraries, tokenizer), weights as packed, K/V, a step's arrays, logits, the loader's
buffers; of a server, its other processes too.  It allocates nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from flyweight.plan.file_size import FileSizes, measure_files
from flyweight.plan.step import (
    attend_bytes,
    count_exchange_bytes,
    count_gpu_records,
    count_layer_bytes,
    gpu_sample_bytes,
    sample_bytes,
)
from flyweight.spec import KV_TYPES, ModelSpec, StoredSlots
from flyweight.weights.gguf_names import list_writable

MIB, GIB = 1 << 20, 1 << 30
LOAD_BUFFER = 24 * MIB  # row ranges in flight while loading: file pages, unpacked codes, scales
SLACK = 16 * MIB  # stacks of 16 threads, what the allocator keeps, code touched for the first time
STACKS, STACK = 16, 512 << 10  # each further thread's (native/gemm_pairs.cpp)
# A token in Python: in the request, the sequence, the result, the prefix cache; with it 20 packed
# log-probabilities, and SCORE_BYTES for each that there may be beyond.
TOKEN_BYTES, SCORES, SCORE_BYTES = 320, 20, 8
MOST_SCORES = 64  # that the sampler lists
MARGIN = 4 * MIB  # what two starts of one process may differ by; kept free in what we suggest
MIN_CONTEXT = 16
LEAST_WIDTH = 16  # blocks of a GPU's tables
MAPPING, HUGE_PAGE = 64 * MIB, 2 * MIB  # weights share mappings, each begun on whole huge pages


class Packer(Protocol):
    """The facts of a backend that the plan needs."""

    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int: ...
    @property
    def activations(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...


DRAFT_MODEL = "draft model"
SlotKinds = Mapping[str, Sequence[tuple[tuple[int, ...], str]]]


@dataclass(frozen=True, slots=True)
class Sizing:
    """The settings that decide memory.  `blocks` 0 means as many as can be used and fit.  `scored`
    rows of a step's logits may be for prompts' log-probabilities; `grammars` bytes are for those of
    requests, `server` bytes for a server's other processes, where there is a server; `scores`
    log-probabilities may be listed with a token's own; `on_gpu`: memory is a GPU's; `draft_probs`:
    what draft tokens were drawn from is kept; `swap` bytes are for blocks outside the K/V memory,
    `peers` bytes for blocks on their way; `from_bytes`: `blocks` follow from the bytes that they
    may take.  Each of `ranks` processes has such a plan, `local_ranks` of them on this host.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_dtype: str
    threads: int = 1
    draft_tokens: int = 0
    scored: int = 0
    blocks: int = 0
    grammars: int = 0
    server: int = 0
    scores: int = SCORES
    on_gpu: bool = False
    draft_probs: bool = False
    swap: int = 0
    peers: int = 0
    from_bytes: bool = False
    ranks: int = 1
    local_ranks: int = 1

    @property
    def spread(self) -> str:
        """Where a figure holds, in words: "", or " in each of 2 processes"."""
        return f" in each of {self.ranks} processes" if self.ranks > 1 else ""

    @property
    def token(self) -> int:
        """Bytes of a token in Python; a GPU's memory has none of them."""
        return 0 if self.on_gpu else TOKEN_BYTES + SCORE_BYTES * max(0, self.scores - SCORES)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, part by part.  `blocks` K/V blocks of `block` bytes; `limit` is what was allowed.  The
    weights of the `drafter` are `draft` bytes, and its K/V `draft_block` a block and
    `draft_scratch` besides.
    """

    base: int
    weights: int
    rounding: int
    block: int
    blocks: int
    step: int
    logits: int
    limit: int
    sizing: Sizing
    draft: int = 0
    draft_block: int = 0
    draft_scratch: int = 0
    drafter: str = DRAFT_MODEL

    @property
    def kv(self) -> int:
        return self.block * self.blocks

    @property
    def draft_kv(self) -> int:
        return self.draft_block * self.blocks + self.draft_scratch

    @property
    def block_cost(self) -> int:
        """Bytes of one more block: in both models, and of its tokens in Python."""
        return self.block + self.draft_block + self.sizing.token * self.sizing.block_size

    @property
    def books(self) -> int:
        return self.sizing.token * self.blocks * self.sizing.block_size

    @property
    def need(self) -> int:
        """Peak bytes: loading and running do not overlap, weights stay."""
        fixed = self.base + self.sizing.server + self.weights + self.rounding + self.draft
        return fixed + max(LOAD_BUFFER, self.running)

    @property
    def running(self) -> int:
        arrays = self.books + self.step + self.logits
        outside = self.sizing.swap + self.sizing.peers
        return self.kv + self.draft_kv + arrays + self.sizing.grammars + outside

    def list_rows(self) -> list[tuple[str, int]]:
        """(what, bytes) for people to read; they add up to `need`.  The loader's buffers are given
        back before K/V is touched.
        """
        what = (
            "on the GPU, and the reserve" if self.sizing.on_gpu else "Python, libraries, tokenizer"
        )
        own = make_possessive(self.drafter)
        rows = [
            (f"held already ({what})", self.base),
            ("weights", self.weights),
            ("weights' last huge pages", self.rounding),
            (f"K/V, {self.blocks} blocks of {self.sizing.block_size} tokens", self.kv),
            ("token lists and tables", self.books),
            ("arrays of a step", self.step),
            ("logits and sampling", self.logits),
        ]
        more = [
            (f"{own} weights", self.draft),
            (f"{own} K/V, in the same blocks", self.draft_kv),
            ("swap space", self.sizing.swap),
            ("blocks to and from peers", self.sizing.peers),
            ("grammars: the vocabulary, those in use", self.sizing.grammars),
            ("API server, and processes that try schemas", self.sizing.server),
            ("more while loading", LOAD_BUFFER - self.running),
        ]
        return rows + [(what, amount) for what, amount in more if amount > 0]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model needs of memory before any setting is known: `weights` bytes once packed, and
    what its `draft` model needs.  Apart from K/V, a slot takes `slot` bytes; `own_kv` is of the
    backend's type, whatever is set; no sequence holds its `scratch` blocks and `waiting` bytes.
    `drafter` names what drafts: heads that store nothing are among the weights, and the model is
    `plain` without them.  `files` are those that the model can be quantised to, None of a family
    that is not written as GGUF.
    """

    spec: ModelSpec
    kinds: SlotKinds
    weights: int
    activations: str
    kv_dtype: str  # the backend's default type of stored K and V
    draft: "Needs | None" = None
    slot: int = 0
    own_kv: bool = False
    scratch: int = 0
    waiting: int = 0
    drafter: str = DRAFT_MODEL
    plain: "Needs | None" = None
    files: FileSizes | None = None

    @property
    def on_gpu(self) -> "Needs":
        """What the memory of a GPU has of it: states that a drafter keeps are the host's."""
        draft = self.draft and replace(self.draft, slot=0, waiting=0)
        return replace(self, draft=draft)

    @property
    def undrafted(self) -> "Needs":
        """What the model needs where nothing drafts."""
        return replace(self.plain or self, draft=None)

    @classmethod
    def of(cls, spec: ModelSpec, kinds: SlotKinds, ops: Packer) -> "Needs":
        weights = count_weight_bytes(kinds, ops)
        files = None
        if spec.family in list_writable():
            files = measure_files(kinds, spec.vocab, ops.count_packed_bytes)
        return cls(spec, kinds, weights, ops.activations, ops.kv_dtype, files=files)

    def add(self, more: SlotKinds, ops: Packer) -> "Needs":
        """The same with further matrices (adapters)."""
        made = Needs.of(self.spec, {**self.kinds, **more}, ops)
        files = self.files and self.files.add(made.weights - self.weights)
        return replace(made, draft=self.draft, files=files)

    def add_heads(
        self, kinds: SlotKinds, stored: StoredSlots | None, ops: Packer, drafter: str
    ) -> "Needs":
        """The same with a drafter's matrices, and what it stores."""
        if stored is None:
            return replace(self.add(kinds, ops), drafter=drafter, plain=self)
        own = Needs.of(stored.spec, kinds, ops)
        own = replace(own, slot=stored.nbytes, own_kv=True, scratch=stored.scratch)
        return replace(self, draft=replace(own, waiting=stored.waiting), drafter=drafter)

    def count_block(self, block_size: int, kv_dtype: str) -> tuple[int, int]:
        """Bytes of one block, and of all those that no sequence holds."""
        dtype = self.kv_dtype if self.own_kv else kv_dtype
        kv = count_block_bytes(self.spec, block_size, dtype)
        return kv + block_size * self.slot, kv * self.scratch


def count_weight_bytes(kinds: SlotKinds, ops: Packer) -> int:
    """Bytes all slots will hold once packed; vectors are kept as float32."""
    total = 0
    for parts in kinds.values():
        for shape, kind in parts:
            matrix = len(shape) == 2
            total += ops.count_packed_bytes((shape[0], shape[1]), kind) if matrix else 4 * shape[0]
    return total


def count_rounding_bytes(needs: Needs) -> int:
    """The unused ends of huge pages: one a mapping, and of two mappings more than one is full."""
    mappings = 1 + 2 * needs.weights // MAPPING
    return HUGE_PAGE * min(mappings, sum(map(len, needs.kinds.values())))


def count_block_bytes(spec: ModelSpec, block_size: int, kv_dtype: str) -> int:
    """Bytes of one K/V block over all layers."""
    return block_size * sum(KV_TYPES[kv_dtype].count_bytes(x.kv) for x in spec.layers)


def make_smallest_plan(needs: Needs, sizing: Sizing, bounds: tuple[int, int]) -> MemoryPlan:
    """The plan with K/V for one sequence of full length, whether it fits or not.  The two models
    never compute at the same time.
    """
    if sizing.on_gpu:
        needs = needs.on_gpu
    draft, heads = needs.draft, needs.weights - needs.undrafted.weights
    worst = [_count_working_bytes(one, sizing) for one in (needs, draft) if one is not None]
    waiting = draft.waiting if draft else 0
    if draft and sizing.on_gpu:
        waiting = _count_captured_bytes(draft, sizing)
    kept = sizing.block_size, sizing.kv_dtype
    draft_block, draft_scratch = draft.count_block(*kept) if draft else (0, 0)
    return MemoryPlan(
        base=bounds[0],
        weights=needs.weights - heads,
        rounding=count_rounding_bytes(needs),
        block=needs.count_block(*kept)[0],
        blocks=sizing.blocks or count_blocks(sizing.max_model_len, sizing.block_size),
        step=max(step for step, _ in worst) + waiting,
        logits=max(logits for _, logits in worst) + _count_probs(needs.spec.vocab, sizing),
        limit=bounds[1],
        sizing=sizing,
        draft=heads + (draft.weights + count_rounding_bytes(draft) if draft else 0),
        draft_block=draft_block,
        draft_scratch=draft_scratch,
        drafter=needs.drafter,
    )


def _count_working_bytes(needs: Needs, sizing: Sizing) -> tuple[int, int]:
    """Arrays of a model's longest step, and its logits."""
    spec, tokens = needs.spec, sizing.max_num_batched_tokens
    rows = min(sizing.max_num_seqs * (1 + sizing.draft_tokens) + sizing.scored, tokens)
    where = tokens, sizing.max_num_seqs, sizing.max_model_len, sizing.threads
    attention = max(attend_bytes(layer, *where) for layer in set(spec.layers))
    if sizing.on_gpu:
        attention += _count_gpu_attention(spec, sizing)
    step = count_layer_bytes(spec, needs.kinds, needs.activations, tokens) + attention + SLACK
    step += max(0, sizing.threads - STACKS) * STACK
    step += count_exchange_bytes(spec, tokens, rows, sizing.ranks)
    if sizing.on_gpu:
        sampling = gpu_sample_bytes(spec.vocab, rows)
    else:
        sampling = sample_bytes(spec.vocab, rows, sizing.threads)
    return step, sampling + _count_listed_bytes(sizing, rows)


def _count_captured_bytes(draft: Needs, sizing: Sizing) -> int:
    """What a GPU keeps of a draft model's steps of a token a sequence: graphs of two models have
    memory of their own.
    """
    tokens = sizing.max_num_seqs
    return _count_working_bytes(draft, replace(sizing, max_num_batched_tokens=tokens))[0]


def _count_probs(vocab: int, sizing: Sizing) -> int:
    """What draft tokens were drawn from, in the host's memory: as drafted, joined, and the last."""
    drafts = sizing.max_num_seqs * sizing.draft_tokens
    return 3 * 4 * vocab * drafts if sizing.draft_probs and not sizing.on_gpu else 0


def _count_gpu_attention(spec: ModelSpec, sizing: Sizing) -> int:
    """The most that attention of any layer needs; tables are a power of two of blocks wide."""
    blocks = max(LEAST_WIDTH, 1 << (-(-sizing.max_model_len // sizing.block_size) - 1).bit_length())
    where = sizing.max_num_batched_tokens, sizing.max_num_seqs, blocks * sizing.block_size
    return max(count_gpu_records(layer, *where) for layer in set(spec.layers))


def _count_listed_bytes(sizing: Sizing, rows: int) -> int:
    """Arrays of listed log-probabilities, of up to a vocabulary: the sampler's, and a copy."""
    return 2 * SCORE_BYTES * rows * sizing.scores if sizing.scores > MOST_SCORES else 0


def format_size(n: int) -> str:
    """Bytes for people: 1.25 GiB, 380.0 MiB; 1.0 KiB where MiB would be 0.0."""
    size, unit = (n / 1024, "KiB") if 1024 <= n < MIB // 20 else (n / MIB, "MiB")
    return f"{n / (1 << 30):.2f} GiB" if n >= 1 << 30 else f"{size:.1f} {unit}"


def make_possessive(name: str) -> str:
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def summarize(plan: MemoryPlan) -> str:
    """One line: what this run may take."""
    parts = {
        "weights": plan.weights,
        "K/V": plan.kv,
        plan.drafter: plan.draft + plan.draft_kv,
        "grammars": plan.sizing.grammars,
        "swap": plan.sizing.swap,
        "peers": plan.sizing.peers,
    }
    described = ", ".join(
        f"{what} {format_size(amount)}" for what, amount in parts.items() if amount
    )
    return (
        f"{format_size(plan.need)} of {format_size(plan.limit)} allowed{plan.sizing.spread} "
        f"({described}); context {plan.sizing.max_model_len}"
    )


def count_blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) + 1  # one to spare: copy-on-write needs a target
