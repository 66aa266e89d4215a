"""Medusa heads (Cai et al., 2024): each proposes the token at one place ahead, from the final
hidden state of the last token that was computed.

Invariant: all heads read one state and none sees another's proposal, so a draft is the best token
of each, in order, or a tree of one shape over the best few of each.  Reads FasterDecoding's files
and vLLM's; heads without an output matrix use the model's own.  T tokens, R requests, H hidden, V
vocabulary.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.headfolder import HeadFolder, find_heads, name_bias
from flyweight.draft.headmethod import MEDUSA_BLOCK
from flyweight.draft.methods import DraftBase, DrafterParts
from flyweight.draft.stepstates import StepStates
from flyweight.draft.tree import is_chain
from flyweight.errors import CheckpointError, ConfigError
from flyweight.ops.base import Ops
from flyweight.ops.operands import Weights
from flyweight.spec import ModelSpec
from flyweight.speculation import SpeculationConfig, read_shape
from flyweight.speculation_methods import SETTING, TREE
from flyweight.validation.token_tree import TokenTree, list_parents
from flyweight.wire import F32, I32, Batch, Tensor

HEAD = re.compile(r"(?:medusa_heads?\.)?(?:(\d+)\.(\d+)|lm_heads\.(\d+))\.weight")
SHARED = "lm_head.weight"  # vLLM's, where all heads have one output matrix
MAP = "token_map"
MOST_HEADS = 64


@dataclass(frozen=True, slots=True)
class MedusaNames:
    """The tensors of one head: its blocks' matrices, in order, and its output matrix, "" where it
    has none of its own.
    """

    blocks: tuple[str, ...]
    head: str


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """Blocks x + silu(Wx + b) [H,H], then an output matrix [V,H], None for the model's."""

    blocks: tuple[Weights, ...]
    head: Weights | None


def open_medusa(
    path: Path, spec: ModelSpec, fingerprint: str, name: str = ""
) -> tuple[HeadFolder, list[MedusaNames]]:
    """Opens heads and checks that they are for this model.  Raises `CheckpointError` or
    `ConfigError`.
    """
    folder = HeadFolder(path)
    try:
        folder.check_method("medusa")
        folder.check_base(spec, fingerprint, name)
        heads = _name_tensors(folder)
        width = (spec.hidden, spec.hidden)
        for head in heads:
            for name in head.blocks:
                folder.check_matrix(name, width)
            if head.head:
                folder.check_matrix(head.head, (spec.vocab, spec.hidden))
        unused = {name for name in folder.shapes if HEAD.fullmatch(name)} | {SHARED}
        unused |= {name_bias(name) for name in unused} | {f"{name}_scale" for name in unused}
        folder.check_tensors(list_names(heads), unused, "Medusa heads'")
        return folder, heads
    except (CheckpointError, ConfigError):
        folder.close()
        raise


def list_names(heads: Sequence[MedusaNames]) -> set[str]:
    """The tensors that are loaded, and biases."""
    matrices = {name for head in heads for name in (*head.blocks, head.head) if name}
    return matrices | {name_bias(name) for name in matrices}


def _name_tensors(folder: HeadFolder) -> list[MedusaNames]:
    """Which tensor is what, under either naming."""
    blocks: dict[int, dict[int, str]] = {}
    heads: dict[int, str] = {}
    for name in folder.shapes:
        if found := MEDUSA_BLOCK.fullmatch(name):
            head, place = (int(x) for x in found.groups() if x is not None)
            blocks.setdefault(head, {})[place] = name
        elif found := HEAD.fullmatch(name):
            heads[int(found[1] or found[3] or 0)] = name
    if MAP in folder.shapes:
        raise CheckpointError(
            f"{folder.path}: heads over a part of the vocabulary are not supported"
        )
    if not blocks or sorted(blocks) != list(range(len(blocks))) or len(blocks) > MOST_HEADS:
        raise CheckpointError(
            f"{folder.path}: no Medusa heads 0 to N - 1 in it, N at most {MOST_HEADS}; expected "
            "tensors such as 0.0.linear.weight or blocks.0.layers.0.weight"
        )
    shared = SHARED if SHARED in folder.shapes else ""
    if folder.config.get("original_lm_head") and 0 in heads:
        shared = heads[0]
    made = []
    for i, own in sorted(blocks.items()):
        if sorted(own) != list(range(len(own))):
            raise CheckpointError(f"{folder.path}: head {i} has blocks {sorted(own)}")
        made.append(MedusaNames(tuple(own[j] for j in sorted(own)), shared or heads.get(i, "")))
    return made


def load_medusa(folder: HeadFolder, names: Sequence[MedusaNames], ops: Ops) -> list[MedusaHead]:
    """The heads, packed; closes the folder."""
    known: dict[str, Weights] = {}

    def pack(name: str) -> Weights:
        if name not in known:
            rows: Any = folder.read(name)
            bias = name_bias(name)
            added = folder.read_vector(bias) if bias in folder.shapes else None
            known[name] = ops.pack(rows.shape, [rows], added)
        return known[name]

    try:
        return [
            MedusaHead(tuple(map(pack, head.blocks)), pack(head.head) if head.head else None)
            for head in names
        ]
    finally:
        folder.close()


@dataclass(frozen=True, slots=True)
class MedusaSource:
    """Opened heads, to be loaded once the model is."""

    folder: HeadFolder
    names: Sequence[MedusaNames]
    name, stored = "Medusa heads", None

    @property
    def kinds(self) -> Mapping[str, Sequence[tuple[tuple[int, ...], str]]]:
        return self.folder.list_kinds(list_names(self.names))


def open_source(config: SpeculationConfig, base: DraftBase) -> MedusaSource:
    """Raises `ConfigError` or `CheckpointError`."""
    path = find_heads(config.options["model"])
    folder, names = open_medusa(path, base.spec, base.fingerprint, base.name)
    try:
        _check_places(config, path, len(names))
    except ConfigError:
        folder.close()
        raise
    return MedusaSource(folder, names)


def find_shape(config: SpeculationConfig) -> TokenTree:
    """The tree of every draft; without one a chain."""
    chain = tuple((0,) * (i + 1) for i in range(config.num_speculative_tokens))
    return read_shape(config) or chain


def _check_places(config: SpeculationConfig, path: Path, heads: int) -> None:
    """Raises where drafts are longer than there are heads, or a tree has another size."""
    shape = find_shape(config)
    depth = max(map(len, shape))
    if depth > heads and config.options[TREE]:
        raise ConfigError(
            f"has paths of {depth} tokens, more than the {heads} heads in {path} draft",
            f"{SETTING}.{TREE}",
            allowed=f"paths of 1 to {heads}",
        )
    if depth > heads:
        raise ConfigError(
            f"is more than the {heads} heads in {path} draft",
            f"{SETTING}.num_speculative_tokens",
            value=depth,
            allowed=f"1 to {heads}",
            hint=f"nearest valid: {heads}",
        )


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> "MedusaDrafter":
    assert parts.model is not None and isinstance(parts.source, MedusaSource)
    ops = parts.model.ops
    heads = load_medusa(parts.source.folder, parts.source.names, ops)
    size, shape = parts.limits.block_size, find_shape(config)
    return MedusaDrafter(heads, ops, parts.model.compute_logits, size, shape)


class MedusaDrafter:
    """A `Drafter` over heads; `compute_logits` is the model's own output matrix, [R,H] -> [R,V].
    Drafts have the `shape`; without one they are chains.
    """

    taps = (-1,)
    needs_all_steps = False

    def __init__(
        self,
        heads: Sequence[MedusaHead],
        ops: Ops,
        compute_logits: Callable[[Tensor], Tensor],
        block_size: int,
        shape: TokenTree = (),
    ) -> None:
        self.heads, self._ops, self._compute_logits = heads, ops, compute_logits
        self._block_size = block_size
        self._shape = shape or tuple((0,) * (i + 1) for i in range(len(heads)))
        parents = list_parents(self._shape)
        self._parents = None if is_chain(parents) else tuple(parents)
        self._step: StepStates | None = None
        self._held: dict[Hashable, tuple[int, Draft]] = {}  # the newest draft, and its position

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        self._step = StepStates(batch, taps, self._block_size)

    def pause(self) -> None:
        self._step = None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        places = self._step.find_all(requests) if self._step else [None] * len(requests)
        rows = [place for place in places if place is not None]
        most = max((request.limit for request in requests), default=0)
        fresh = iter(self._compute(np.array(rows, np.int32), self._shape[:most]) if rows else [])
        drafts = []
        for request, place in zip(requests, places, strict=True):
            at = len(request.tokens)
            if place is not None:
                draft = next(fresh)
            else:  # not in this step: its text has not changed, nor has what follows
                held, draft = self._held.get(request.id, (-1, Draft(())))
                draft = draft if held == at else Draft(())
            self._held[request.id] = at, draft
            parents = draft.parents and draft.parents[: request.limit]
            drafts.append(Draft(draft.tokens[: request.limit], parents))
        return drafts

    def forget(self, id: Hashable) -> None:
        self._held.pop(id, None)

    def _compute(self, rows: I32, shape: TokenTree) -> list[Draft]:
        """A draft of that shape for each row."""
        assert self._step is not None
        ops, state = self._ops, self._ops.take(self._step.taps[-1], rows)
        best: list[I32] = []  # [R, ranks] of each head
        for place in range(max(map(len, shape), default=0)):
            head, x = self.heads[place], state
            for block in head.blocks:
                added = ops.activate(ops.linear(x, block), "silu")
                ops.add(x, added)
                x = added
            logits = self._compute_logits(x) if head.head is None else ops.linear(x, head.head)
            count = 1 + max(path[place] for path in shape if len(path) > place)
            best.append(find_best(ops.fetch(logits), count))
        parents = self._parents and self._parents[: len(shape)]
        return [
            Draft(tuple(int(best[len(path) - 1][r, path[-1]]) for path in shape), parents)
            for r in range(len(rows))
        ]


def find_best(logits: F32, count: int) -> I32:
    """The ids of the `count` largest of each row, best first, all where a row has fewer: [R,n]."""
    count = min(count, logits.shape[1])
    few = np.argpartition(-logits, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(logits, few, axis=1), axis=1, kind="stable")
    best: I32 = np.take_along_axis(few, order, axis=1).astype(np.int32)
    return best
