"""A token of a tree attends its own path only: its bits are those of the path as a plain draft."""

import pytest
import tree_cases
from tree_cases import check_tree, make_case

from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import KV_TYPES, KVGroup

BACKENDS = {
    "reference": ReferenceOps,
    **{isa: lambda mode, isa=isa: CpuOps(2, isa, mode) for isa in available_isas()},
}
OPTIONS = ({}, {"window": 4}, {"chunk": 16}, {"softcap": 3.0})


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(backend: str, activations: str = "int8") -> Ops:
    ops: Ops = BACKENDS[backend](activations)  # type: ignore[operator]
    return ops


@pytest.mark.parametrize("dtype", [kind.name for kind in KV_TYPES.values()])
def test_bits_are_those_of_the_path(backend: str, dtype: str) -> None:
    for options in OPTIONS:
        check_tree(make(backend), make_case(KVGroup(2, 32, 32), 4), dtype, **options)


def test_values_within_keys(backend: str) -> None:
    check_tree(make(backend, "f32"), make_case(KVGroup(1, 48, 32, v_in_k=True), 4), "bf16")


def test_an_ancestor_that_is_not_copied_is_noticed(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent of e is missing: its slot holds something else."""
    src, dst = tree_cases.ANCESTORS
    monkeypatch.setattr(tree_cases, "ANCESTORS", (src[:-1], dst[:-1]))
    with pytest.raises(AssertionError):
        check_tree(make(backend), make_case(KVGroup(2, 32, 32), 4), "bf16")
