"""The loader against plans of its own making: order, permutation, mixed kinds, strictness, and
memory in flight.
"""

import resource
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from test_checkpoints import META

from convert import half_split
from filewriters import Tensor, encode, random_tensor, write_folder, write_gguf
from flyweight.errors import CheckpointError
from flyweight.ops.base import Ops
from flyweight.ops.grouped import GroupedWeight
from flyweight.spec import SlotPlan, Source, WeightPlan
from flyweight.weights import load as loader
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.weights.formats.values import to_f32

RNG = np.random.default_rng(11)


@dataclass
class Packed:
    shape: tuple[int, int]
    kind: str
    values: np.ndarray[Any, Any]
    bias: np.ndarray[Any, Any] | None
    rows: list[int]


@dataclass
class Recorder:
    """The one op the loader calls; keeps what it was given as float32."""

    block_kinds = frozenset[str]()
    keep: bool = True
    packed: list[Packed] = field(default_factory=list)

    def pack(self, shape: tuple[int, int], parts: Iterable[Any], bias: Any = None) -> Packed:
        kinds, values, rows = set(), [np.empty((0, shape[1]), np.float32)], []
        for part in parts:
            grouped = isinstance(part, GroupedWeight)
            kinds.add(part.kind if grouped else str(part.dtype))
            rows.append(part.shape[0])
            if self.keep:
                values.append(part.dequantize() if grouped else to_f32(part))
        assert len(kinds) == 1 and sum(rows) == shape[0]
        self.packed.append(Packed(shape, kinds.pop(), np.concatenate(values), bias, rows))
        return self.packed[-1]


def run(path: Path, plan: WeightPlan, progress: Any = None) -> dict[str, Any]:
    return loader.load(open_checkpoint(path), plan, cast(Ops, Recorder()), progress)


def values_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    kind, shape, raw = tensor
    rows = FORMATS[kind].parse(np.frombuffer(raw, np.uint8), shape)
    return rows.dequantize() if isinstance(rows, GroupedWeight) else to_f32(rows)


def qkv_plan(columns: int = 256, bias: bool = False) -> WeightPlan:
    names = tuple(f"model.layers.0.self_attn.{x}_proj" for x in "qkv")
    turned = (*range(0, 16, 2), *range(1, 16, 2))
    sources = tuple(
        Source(
            f"{n}.weight", (rows, columns), rows,
            order=order, bias=f"{n}.bias" if bias else "",
        )
        for n, rows, order in zip(names, (64, 32, 32), (turned, turned, ()), strict=True)
    )  # fmt: skip
    return WeightPlan((SlotPlan("qkv", (128, columns), sources),))


def qkv_gguf(path: Path, kinds: tuple[str, str, str], bias: bool = False) -> dict[str, Tensor]:
    tensors = {}
    for x, kind, rows in zip("qkv", kinds, (64, 32, 32), strict=True):
        tensors[f"blk.0.attn_{x}.weight"] = random_tensor(RNG, kind, (rows, 256))
        if bias:
            tensors[f"blk.0.attn_{x}.bias"] = random_tensor(RNG, "f32", (rows,))
    write_gguf(path, META | {"llama.vocab_size": 10}, tensors)
    return tensors


@pytest.mark.parametrize("kind", [k for k in FORMATS if k != "u8"])
def test_rope_rows_leave_the_interleaved_order(kind: str, tmp_path: Path) -> None:
    tensors = qkv_gguf(tmp_path / "m.gguf", (kind, kind, kind), bias=True)
    found = run(tmp_path / "m.gguf", qkv_plan(bias=True))["qkv"]
    q, k, v = (values_of(tensors[f"blk.0.attn_{x}.weight"]) for x in "qkv")
    assert np.array_equal(found.values, np.concatenate([half_split(q, 4), half_split(k, 2), v]))
    biases = [values_of(tensors[f"blk.0.attn_{x}.bias"])[:, None] for x in "qkv"]
    turned = [half_split(biases[0], 4), half_split(biases[1], 2), biases[2]]
    assert np.array_equal(found.bias, np.concatenate(turned)[:, 0])


MIXTURES = {
    ("q4_k", "q4_k", "q6_k"): [96, 32],
    ("q4_k", "q6_k", "q4_k"): [64, 32, 32],
    ("q8_0", "q4_0", "q4_0"): [64, 64],
    ("f32", "f16", "bf16"): [64, 32, 32],
}


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_a_slot_of_several_kinds_is_cut_where_they_change(
    kinds: tuple[str, str, str], tmp_path: Path
) -> None:
    tensors = qkv_gguf(tmp_path / "m.gguf", kinds)
    found = run(tmp_path / "m.gguf", qkv_plan())["qkv"]
    assert isinstance(found, tuple) and [w.shape[0] for w in found] == MIXTURES[kinds]
    q, k, v = (values_of(tensors[f"blk.0.attn_{x}.weight"]) for x in "qkv")
    expected = np.concatenate([half_split(q, 4), half_split(k, 2), v])
    assert np.array_equal(np.concatenate([w.values for w in found]), expected)
    planned = loader.list_slot_kinds(open_checkpoint(tmp_path / "m.gguf"), qkv_plan())["qkv"]
    assert [shape[0] for shape, _ in planned] == MIXTURES[kinds]
    assert list(dict.fromkeys(kinds)) == list(dict.fromkeys(kind for _, kind in planned))


def pair_plan(bias: tuple[str, ...] = ()) -> WeightPlan:
    a, b = bias or ("", "")
    sources = Source("a", (6, 4), 6, bias=a), Source("b", (4, 4), 4, bias=b)
    norm = SlotPlan("norm", (4,), (Source("n", (4,), 4),), "vector")
    return WeightPlan((SlotPlan("pair", (10, 4), sources), norm), ("old.*.table", "unused"))


def pair_tensors() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"a": (6, 4), "b": (4, 4), "n": (4,)}
    return {name: encode(RNG.standard_normal(shape), "f32") for name, shape in shapes.items()}


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_vectors_become_float32(kind: str, tmp_path: Path) -> None:
    norm = encode(RNG.standard_normal(4), kind)
    write_folder(tmp_path, {}, pair_tensors() | {"n": norm})
    found = run(tmp_path, pair_plan())["norm"]
    assert found.dtype == np.float32 and np.array_equal(found, values_of(norm))


def test_a_source_without_a_bias_gets_zeros(tmp_path: Path) -> None:
    bias = encode(RNG.standard_normal(4), "f16")
    write_folder(tmp_path, {}, pair_tensors() | {"b.bias": bias})
    found = run(tmp_path, pair_plan(("", "b.bias")))["pair"].bias
    assert found.dtype == np.float32
    assert np.array_equal(found, np.concatenate([np.zeros(6, np.float32), values_of(bias)]))


def test_known_unused_tensors_are_passed_over(tmp_path: Path) -> None:
    extra = {"old.3.table": encode(np.ones(2), "f32"), "unused": encode(np.ones(2), "f32")}
    write_folder(tmp_path, {}, pair_tensors() | extra)
    assert set(run(tmp_path, pair_plan())) == {"pair", "norm"}


STRICT: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "one missing": ({"b": None}, r"1 tensor is missing: 'b'$"),
    "all missing": (
        {"a": None, "b": None, "n": None, "unused": encode(np.ones(2), "f32")},
        r"3 tensors are missing: 'a', 'b', 'n'$",
    ),
    "one left over": (
        {"c": encode(np.ones(2), "f32")},
        r"1 tensor is not used .*: 'c'$",
    ),
    "a name that clears the screen": (
        {"\x1b[2J\n" + "x" * 1000: encode(np.ones(2), "f32")},
        r"1 tensor is not used by this model: '\\x1b\[2J\\nx{75}'\.\.\.",
    ),
    "seven left over": (
        {f"c{i}": encode(np.ones(2), "f32") for i in range(7)},
        r"7 tensors are not used by this model: 'c0', 'c1', 'c2', 'c3', 'c4', and 2 more",
    ),
    "wrong rows": (
        {"a": encode(np.ones((5, 4)), "f32")},
        r"'a' has shape \[5, 4\], expected \[6, 4\]",
    ),
    "transposed": (
        {"a": encode(np.ones((4, 6)), "f32")},
        r"'a' has shape \[4, 6\], expected \[6, 4\]",
    ),
    "three axes": ({"a": encode(np.ones((6, 4, 1)), "f32")}, r"'a' has shape \[6, 4, 1\]"),
    "norm too long": ({"n": encode(np.ones(5), "f32")}, r"'n' has shape \[5\], expected \[4\]"),
}


@pytest.mark.parametrize("fault", STRICT)
def test_every_tensor_is_used_and_every_slot_filled(fault: str, tmp_path: Path) -> None:
    change, expected = STRICT[fault]
    tensors = {k: t for k, t in (pair_tensors() | change).items() if t is not None}
    write_folder(tmp_path, {}, tensors)
    checkpoint = open_checkpoint(tmp_path)
    recorder = Recorder()
    with pytest.raises(CheckpointError, match=expected):
        loader.load(checkpoint, pair_plan(), cast(Ops, recorder))
    assert not recorder.packed, "nothing may be loaded of a model that is refused"
    with pytest.raises(CheckpointError, match=expected):
        loader.list_slot_kinds(checkpoint, pair_plan())


def test_a_quantised_vector_is_refused(tmp_path: Path) -> None:
    tensors = {"output_norm.weight": random_tensor(RNG, "q8_0", (32,))}
    write_gguf(tmp_path / "m.gguf", META | {"llama.vocab_size": 10}, tensors)
    plan = WeightPlan(
        (SlotPlan("norm", (32,), (Source("model.norm.weight", (32,), 32),), "vector"),)
    )
    with pytest.raises(CheckpointError, match=r"vector 'model\.norm\.weight' is q8_0"):
        run(tmp_path / "m.gguf", plan)


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    write_folder(tmp_path, {}, pair_tensors())
    heard: list[tuple[int, int]] = []
    run(tmp_path, pair_plan(), lambda done, total: heard.append((done, total)))
    total = (6 + 4) * 4 * 4 + 4 * 4
    assert [t for _, t in heard] == [total] * len(heard) and heard[-1][0] == total
    assert [d for d, _ in heard] == sorted(d for d, _ in heard)


@pytest.mark.parametrize("kind", ["bf16", "q4_0"])
def test_parts_start_at_tiles_and_memory_in_flight_is_small(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "PART_BYTES", 1 << 20)
    shape = (1500, 4096)
    write_gguf(tmp_path / "m.gguf", META, {"token_embd.weight": random_tensor(RNG, kind, shape)})
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    plan = WeightPlan(
        (
            SlotPlan(
                "embed", shape, (Source("model.embed_tokens.weight", shape, shape[0]),), "embed"
            ),
        )
    )
    recorder = Recorder(keep=False)
    before = resident()
    tracemalloc.start()
    loader.load(checkpoint, plan, cast(Ops, recorder))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = recorder.packed[0].rows
    assert len(rows) > 5 and all(n % loader.TILE == 0 for n in rows[:-1])
    assert peak < 4 << 20
    assert resident() - before < 6 << 20


def resident() -> int:
    """Bytes of this process in memory, pages of mapped files among them."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
