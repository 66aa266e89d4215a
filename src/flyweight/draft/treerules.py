"""The trees that a drafter grows level by level: what is known of one, and which tokens it keeps.

Tokens are ranked by the drafter's probability.  Before them comes the one that the target's own
random numbers draw, which is taken to be as likely as the best.

Invariant: a node comes after its parent, and is not likelier.  Knows no arrays of the backend.
H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import inf
from typing import NamedTuple, Protocol

from flyweight.draft.drafter import Draft
from flyweight.draft.model import DraftRow
from flyweight.draft.tree import ROOT
from flyweight.errors import ConfigError
from flyweight.speculation import SpeculationConfig, read_shape
from flyweight.speculation_methods import SETTING, TREE, WIDTH
from flyweight.validation.token_tree import TokenTree
from flyweight.wire import F32, I32


class TreeNode(NamedTuple):
    """A draft token after `parent`, the path to it by ranks, and its log-probability."""

    token: int
    parent: int
    path: tuple[int, ...]
    score: float


class GrownPath(NamedTuple):
    """What the last token of a path left: the state after it [H], and the table of its pairs."""

    state: F32
    table: I32


@dataclass(slots=True)
class GrowingTree:
    """The tree of one request.  `open` are the nodes to be computed next, `grown` those that were
    last, ROOT the newest token.
    """

    row: DraftRow
    nodes: list[TreeNode] = field(default_factory=list)
    open: list[int] = field(default_factory=lambda: [ROOT])
    grown: dict[int, GrownPath] = field(default_factory=dict)

    def list_tokens(self, node: int) -> list[int]:
        """The draft tokens that lead to a node, itself included."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return tokens[::-1]

    def add_children(
        self, node: int, drawn: int, ids: Sequence[int], scores: Sequence[float]
    ) -> None:
        """The token drawn and the best others, as many as there are ids."""
        path, score = (self.nodes[node].path, self.nodes[node].score) if node != ROOT else ((), 0.0)
        ranked = [(drawn, max(scores))]
        ranked += [one for one in zip(ids, scores, strict=True) if one[0] != drawn]
        for rank, (token, own) in enumerate(ranked[: len(ids)]):
            if own > -inf:  # the layer knows the token
                self.nodes.append(TreeNode(token, node, (*path, rank), score + own))

    def goes_on(self, node: int) -> bool:
        return self.nodes[node].token not in self.row.options.stop_ids

    def finish(self, kept: Sequence[int]) -> Draft:
        """The draft of some nodes, parents first."""
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        tokens = tuple(self.nodes[node].token for node in kept)
        return Draft(tokens, tuple(place[self.nodes[node].parent] for node in kept))


class TreeRule(Protocol):
    """Which nodes a tree has."""

    @property
    def children(self) -> int:
        """Of a node, before some are left out."""
        ...

    @property
    def paths(self) -> int:
        """The most nodes of a tree that are computed at once."""
        ...

    @property
    def depth(self) -> int:
        """The most tokens of a path."""
        ...

    def choose_open(self, tree: GrowingTree, level: int) -> list[int]:
        """The nodes that go on, of those with `level` tokens."""
        ...

    def choose_kept(self, tree: GrowingTree) -> list[int]:
        """The nodes of the draft, parents first."""
        ...


@dataclass(frozen=True, slots=True)
class LikelyTree:
    """EAGLE-2 (Li et al., 2024): of each level the `width` likeliest paths go on, and the likeliest
    tokens of all levels are the draft.
    """

    width: int
    depth: int

    @property
    def children(self) -> int:
        return self.width

    @property
    def paths(self) -> int:
        return self.width

    def choose_open(self, tree: GrowingTree, level: int) -> list[int]:
        """No child is likelier than its parent: below what is left out nothing is kept."""
        kept = [i for i in self.choose_kept(tree) if len(tree.nodes[i].path) == level]
        if level >= min(self.depth, tree.row.request.limit):
            return []
        return nlargest(self.width, kept, key=lambda i: tree.nodes[i].score)

    def choose_kept(self, tree: GrowingTree) -> list[int]:
        nodes = tree.nodes  # of equal ones the first is the parent
        order = sorted(range(len(nodes)), key=lambda i: (-nodes[i].score, i))
        return sorted(order[: tree.row.request.limit])


@dataclass(frozen=True, slots=True)
class FixedTree:
    """The paths of a shape, likely ones first."""

    shape: TokenTree

    @property
    def children(self) -> int:
        return 1 + max(path[-1] for path in self.shape)

    @property
    def paths(self) -> int:
        inner = {path[:-1] for path in self.shape}
        return max(sum(len(path) == level for path in inner) for level in range(self.depth))

    @property
    def depth(self) -> int:
        return max(map(len, self.shape))

    def choose_open(self, tree: GrowingTree, level: int) -> list[int]:
        inner = {path[:-1] for path in self.shape[: tree.row.request.limit]}
        return [
            i for i, node in enumerate(tree.nodes) if len(node.path) == level and node.path in inner
        ]

    def choose_kept(self, tree: GrowingTree) -> list[int]:
        wanted = set(self.shape[: tree.row.request.limit])
        return [i for i, node in enumerate(tree.nodes) if node.path in wanted]


def make_rule(config: SpeculationConfig) -> TreeRule | None:
    """None for chains.  Raises `ConfigError`."""
    shape, width = read_shape(config), config.options.get(WIDTH) or 1
    if not shape and width == 1:
        return None
    if config.verifier == "rejection":
        raise ConfigError(
            f"is not supported with {TREE if shape else WIDTH}", f"{SETTING}.verifier",
            value="rejection", allowed="coupled",
        )  # fmt: skip
    return FixedTree(shape) if shape else LikelyTree(width, config.num_speculative_tokens)
