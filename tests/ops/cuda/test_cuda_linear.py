"""Weights and products of the CUDA backend against the reference, with the bounds of docs/ops.md;
where bf16 products open grouped weights, the bound grows by 2^-8 of the mass for their rounding.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from op_cases import DENSE, EPS, GROUPED, ids, normal, paged, part, reach, within

from flyweight.errors import CheckpointError
from flyweight.ops.base import Array, from_bf16_bits, to_bf16_bits
from flyweight.ops.cuda import linear as products
from flyweight.ops.cuda import weights
from flyweight.ops.grouped import GroupedWeight, count_block
from flyweight.ops.operands import LowRank
from flyweight.ops.reference import ReferenceOps
from flyweight.wire import F32

Piece = GroupedWeight | Array
HOT = ("bf16", "q4_0", "u4_g128", "q8_0", "q4_k", "q6_k", "e4m3_rows")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(25)


def packed(device: str, pieces: list[Piece], bias: F32 | None = None) -> weights.CudaWeight:
    shape = sum(p.shape[0] for p in pieces), pieces[0].shape[1]
    return weights.pack(shape, pieces, bias, torch.device(device))


def columns(kind: str) -> int:
    """An inner size that is not a whole number of units where the kind allows it."""
    return {256: 512, 1: 333, 32: 352, 64: 320}.get(count_block(kind), 384)


def send(x: Array, device: str) -> torch.Tensor:
    return torch.from_numpy(x).to(device)


def find_bound(x: F32, pieces: list[Piece], bias: F32, mode: str) -> Array:
    ref, k = ReferenceOps(), x.shape[1]
    sizes = [reach(p, ref.pack(p.shape, [p]).matrix.astype(np.float32)) for p in pieces]
    mass = np.abs(x.astype(np.float64)) @ np.concatenate(sizes).T + np.abs(bias)
    opened = isinstance(pieces[0], GroupedWeight) or pieces[0].dtype != np.uint16
    rounds = 2.0**-8 if mode == "bf16" and opened else 0.0
    return ((16 + 2 * np.sqrt(k)) * EPS + rounds) * mass


@pytest.mark.parametrize("kind", [*DENSE, *GROUPED])
def test_parts_are_kept_exactly(device: str, rng: np.random.Generator, kind: str) -> None:
    k = columns(kind)
    whole = part(rng, kind, 37, k)
    pieces = [whole.take(s) if isinstance(whole, GroupedWeight) else whole[s]
              for s in (slice(0, 5), slice(5, 5), slice(5, 37))]  # fmt: skip
    w = packed(device, pieces)
    assert w.kind == kind and w.nbytes == weights.count_packed_bytes((37, k), kind)
    where = rng.integers(0, 37, 9).astype(np.int32)
    got = products.embed(w, send(where, device)).cpu().numpy()
    want = ReferenceOps().pack((37, k), [whole]).matrix.astype(np.float32)[where]
    assert (got == want).all()


# In float32 numbers are opened as `embed` opens them: a kind of each form is enough.
EXACT = (*DENSE, "q4_0", "q4_k", "q6_k", "u4_g128", "mxfp4", "nf4_g64_f32", "s8_rows_order_static")
MODES = [*((kind, "bf16") for kind in (*DENSE, *GROUPED)), *((kind, "f32") for kind in EXACT)]


@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_linear(device: str, rng: np.random.Generator, kind: str, mode: str) -> None:
    k, ref = columns(kind), ReferenceOps(mode)
    pieces, bias = [part(rng, kind, n, k) for n in (33, 40)], normal(rng, 73)
    if isinstance(pieces[0], GroupedWeight) and pieces[0].columns is not None:
        pieces[1] = replace(pieces[1], columns=pieces[0].columns)
    w, truth = packed(device, pieces, bias), ref.pack((73, k), pieces, bias)
    for rows in (1, 16):
        x = from_bf16_bits(to_bf16_bits(normal(rng, rows, k)))
        got = products.linear(send(x, device), w, mode, True).cpu().numpy()
        within(got, ref.linear(x, truth), find_bound(x, pieces, bias, mode))


@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "bf16") for kind in HOT), ("bf16", "f32"), ("q4_0", "f32")]
)
def test_rows_do_not_know_each_other(
    device: str, rng: np.random.Generator, kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of every height, and both ways to add splits: the same bits."""
    monkeypatch.setattr(products, "WALKING", 2)
    n, k = 70, 1024
    w = packed(device, [part(rng, kind, n, k)], normal(rng, n))
    x = send(normal(rng, 70, k), device).bfloat16()
    want = products.linear(x, w, mode, True)
    assert products.find_plan(w, mode == "f32").splits > 1
    for first, end in ((0, 1), (1, 3), (3, 20), (25, 65), (69, 70)):
        assert torch.equal(products.linear(x[first:end], w, mode, True), want[first:end])


def test_x_is_rounded_once(device: str, rng: np.random.Generator) -> None:
    w, x = packed(device, [part(rng, "bf16", 20, 256)]), send(normal(rng, 5, 256), device)
    got = products.linear(x, w, "bf16", True)
    assert torch.equal(got, products.linear(x.bfloat16(), w, "bf16", True))


def test_a_tuple_is_side_by_side(device: str, rng: np.random.Generator) -> None:
    some = tuple(
        packed(device, [part(rng, kind, n, 1024)], normal(rng, n))
        for n, kind in ((40, "q4_k"), (17, "q6_k"), (8, "f32"))
    )
    x = send(normal(rng, 3, 1024), device)
    got = products.linear(x, some, "bf16", True)
    want = torch.cat([products.linear(x, w, "bf16", True) for w in some], dim=1)
    assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "u4_g128"])
def test_heads(device: str, rng: np.random.Generator, kind: str) -> None:
    heads = [packed(device, [part(rng, kind, 24, 128)]) for _ in range(3)]
    x = send(normal(rng, 5, 3, 160), device)[:, :, 32:]
    want = [products.linear(x[:, h], w, "bf16", True) for h, w in enumerate(heads)]
    got = products.linear_heads(x, heads, "bf16", True)
    for h, each in enumerate(want):
        assert torch.equal(got[:, h], each)


def test_adapters_change_the_rows_of_their_sequences(device: str, rng: np.random.Generator) -> None:
    chunks = [(0, 3), (0, 2), (0, 4)]
    batch = replace(paged(rng, chunks, 16).step(chunks), adapters=ids(1, -1, 0))
    low = {i: (normal(rng, 8, 64), normal(rng, 40, 8)) for i in range(2)}
    x, y = normal(rng, 9, 64), normal(rng, 9, 40)
    ref, want = ReferenceOps(), y.copy()
    ref.adapt(want, x, {i: LowRank(*(ref.pack(m.shape, [m]) for m in p)) for i, p in low.items()},
              batch)  # fmt: skip

    class Ops:
        def linear(self, x: torch.Tensor, w: weights.CudaWeight) -> torch.Tensor:
            return products.linear(x, w, "f32", True)

    mine = {i: LowRank(*(packed(device, [m]) for m in p)) for i, p in low.items()}
    got = send(y, device)
    products.adapt(Ops(), got, send(x, device), mine, batch)
    within(got.cpu().numpy(), want, 1e-3)


def test_nothing_to_do(device: str, rng: np.random.Generator) -> None:
    w = packed(device, [part(rng, "q4_0", 5, 32)])
    assert products.linear(torch.empty(0, 32, device=device), w, "bf16", True).shape == (0, 5)
    assert products.embed(w, torch.empty(0, dtype=torch.int32, device=device)).shape == (0, 32)


def test_wrong_weights_are_refused(device: str, rng: np.random.Generator) -> None:
    q4, q8 = part(rng, "q4_0", 16, 64), part(rng, "q8_0", 16, 64)
    assert isinstance(q4, GroupedWeight)
    for shape, parts, message in (
        ((32, 64), [q4, q8], "one kind"),
        ((17, 64), [q4], "16 rows where 17"),
        ((15, 64), [q4], "at row 0"),
        ((16, 32), [q4], "at row 0"),
        ((16, 64), [], "0 rows"),
        ((16, 64), [replace(q4, zero=7)], "no kernel"),
        ((16, 64), [np.zeros((16, 64))], "float64"),
    ):
        with pytest.raises(CheckpointError, match=message):
            weights.pack(shape, parts, None, torch.device(device))


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_k", "q6_k", "u4_g128", "e4m3_rows"])
def test_weights_for_measurements(device: str, rng: np.random.Generator, kind: str) -> None:
    dense = send(normal(rng, 20, 512), device)
    w = weights.quantise_on_device(dense, kind)
    got = products.embed(w, torch.arange(20, dtype=torch.int32, device=device))
    close = 0.3 if kind in ("q4_0", "q4_k", "u4_g128") else 0.15
    assert w.nbytes == weights.count_packed_bytes((20, 512), kind)
    assert float((got - dense).abs().max()) < close
