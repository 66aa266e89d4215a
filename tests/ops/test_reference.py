"""The reference itself, against formulas written another way: fsum, complex rotations, masks."""

import math

import numpy as np
import pytest
from op_cases import DENSE, GROUPED, ids, normal, paged, part, poisoned, still

from flyweight.errors import CheckpointError, ConfigError
from flyweight.ops.base import from_bf16_bits, to_bf16_bits
from flyweight.ops.operands import HeadNorm
from flyweight.ops.reference import ReferenceOps
from flyweight.ops.reference_math import quantize_rows
from flyweight.spec import KVGroup


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_norm_is_the_root_mean_square(rng: np.random.Generator) -> None:
    x, w = normal(rng, 3, 33), normal(rng, 33)
    y = ReferenceOps().norm(x, w, 1e-5)
    for t in range(3):
        root = math.sqrt(math.fsum(float(v) ** 2 for v in x[t]) / 33 + 1e-5)
        assert y[t].tolist() == pytest.approx(
            [float(a) / root * float(b) for a, b in zip(x[t], w, strict=True)]
        )


@pytest.mark.parametrize("kind", [*DENSE, *GROUPED])
def test_linear_is_a_sum_of_products(rng: np.random.Generator, kind: str) -> None:
    ops, k = ReferenceOps("f32"), 256
    piece, x, bias = part(rng, kind, 5, k), normal(rng, 2, k), normal(rng, 5)
    w = ops.pack((5, k), [piece], bias)
    dense = ops.embed(w, np.arange(5, dtype=np.int32))
    y = ops.linear(x, w)
    for t, n in np.ndindex(2, 5):
        exact = math.fsum(float(a) * float(b) for a, b in zip(x[t], dense[n], strict=True)) + float(
            bias[n]
        )
        assert y[t, n] == pytest.approx(exact, rel=1e-6, abs=1e-6)
    assert w.kind == kind and w.nbytes == ops.count_packed_bytes((5, k), kind) + bias.nbytes


def test_int8_rows_are_rounded_per_32(rng: np.random.Generator) -> None:
    x = normal(rng, 4, 96)
    x[1, 32:64] = 0
    x[2, 0:32] = 1e-40  # too small for an inverse
    codes, scales = quantize_rows(x)
    for t, g in np.ndindex(4, 3):
        group = x[t, 32 * g : 32 * g + 32]
        amax = max(abs(float(v)) for v in group)
        dead = amax < 1e-37
        assert scales[t, g] == (0 if dead else np.float32(np.float32(amax) / np.float32(127)))
        back = codes[t, 32 * g : 32 * g + 32].astype(np.float64) * float(scales[t, g])
        assert np.abs(back - group).max() <= amax / 254 * 1.00001 or dead
        assert np.abs(codes[t, 32 * g : 32 * g + 32]).max() == (0 if dead else 127)


def test_what_linear_multiplies_with(rng: np.random.Generator) -> None:
    """int8 for grouped, bf16 for bf16, float32 for the rest; bf16 mode rounds for all."""
    x = normal(rng, 1, 256)
    shape, eye = (256, 256), np.eye(256, dtype=np.float32)
    q4 = part(rng, "q4_0", 1, 256)
    rounded = from_bf16_bits(to_bf16_bits(x))
    for kind, dense in (("f32", eye), ("f16", eye.astype(np.float16)), ("bf16", to_bf16_bits(eye))):
        for mode in ("f32", "bf16", "int8"):
            ops = ReferenceOps(mode)
            lossy = mode == "bf16" or (mode == "int8" and kind == "bf16")
            assert (ops.linear(x, ops.pack(shape, [dense])) == (rounded if lossy else x)).all()
    results = [
        ReferenceOps(m).linear(x, ReferenceOps(m).pack((1, 256), [q4])) for m in ("f32", "int8")
    ]
    assert results[0] != results[1]


def test_rotation_and_rope_are_complex_products(rng: np.random.Generator) -> None:
    ops, dim, group = ReferenceOps(), 8, KVGroup(1, 12, 12)
    inv_freq = (10000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    pages = paged(rng, [(0, 3)], 4)
    batch = pages.step([(0, 3)])
    rope = ops.rotation(batch.positions, inv_freq, 1.0)
    kv = ops.make_kv_layer(group, pages.blocks, 4, "f32")
    qkv = normal(rng, 3, 4 * 12)  # two query heads, a K, a V
    q = ops.rope_store(qkv, kv, batch, rope, None)
    heads = qkv.reshape(3, 4, 12)
    for t in range(3):
        turn = np.exp(1j * t * inv_freq.astype(np.float64))
        for got, given in (
            (q[t, 0], heads[t, 0]),
            (q[t, 1], heads[t, 1]),
            (kv.k[batch.slots[t], 0], heads[t, 2]),
        ):
            z = (given[:4] + 1j * given[4:8]) * turn
            np.testing.assert_allclose(got, [*z.real, *z.imag, *given[8:]], atol=1e-6)
        assert (kv.v[batch.slots[t], 0] == heads[t, 3]).all()


def test_head_norms_come_before_the_rotation(rng: np.random.Generator) -> None:
    ops, group = ReferenceOps(), KVGroup(1, 8, 8)
    pages = paged(rng, [(0, 2)], 4)
    batch, norms = pages.step([(0, 2)]), HeadNorm(normal(rng, 8), normal(rng, 8), 1e-6)
    qkv = normal(rng, 2, 32)
    kv = ops.make_kv_layer(group, pages.blocks, 4, "f32")
    rope = ops.rotation(batch.positions, normal(rng, 4), 1.0)
    q = ops.rope_store(qkv, kv, batch, rope, norms)
    first = qkv[:, :8].astype(np.float64)
    normed = first / np.sqrt((first**2).mean(1, keepdims=True) + 1e-6) * norms.q
    np.testing.assert_allclose(q[0, 0], normed[0], rtol=1e-6)  # position 0 does not turn
    np.testing.assert_allclose(np.linalg.norm(q[1, 0]), np.linalg.norm(normed[1]), rtol=1e-6)


def test_attention_is_a_masked_softmax(rng: np.random.Generator) -> None:
    """One dense matrix with a triangular mask, per head, against the paged loop."""
    ops, group, dim, tokens = ReferenceOps(), KVGroup(2, 8, 8), 8, 21
    pages = paged(rng, [(0, tokens), (0, 3)], 4)
    batch = pages.step([(0, tokens), (0, 3)])
    kv = poisoned(ops, group, pages, "f32")
    qkv = normal(rng, tokens + 3, (4 + 4) * dim)
    q = ops.rope_store(qkv, kv, batch, still(tokens + 3, 4), None)
    got = ops.attend(q, kv, batch, 0.3).reshape(-1, 4, dim)
    heads = qkv.reshape(-1, 8, dim).astype(np.float64)
    for h in range(4):
        scores = heads[:tokens, h] @ heads[:tokens, 4 + h // 2].T * 0.3
        scores[np.triu_indices(tokens, 1)] = -np.inf
        p = np.exp(scores)
        want = p @ heads[:tokens, 6 + h // 2] / p.sum(1, keepdims=True)
        np.testing.assert_allclose(got[:tokens, h], want, rtol=1e-5, atol=1e-6)


def test_activations() -> None:
    ops = ReferenceOps()
    for v in (-30.0, -3.0, -0.5, 0.0, 0.1, 2.0, 20.0):
        x = np.array([[v, 3.0]], np.float32)
        v = float(np.float32(v))
        assert ops.act(x, "silu")[0, 0] == pytest.approx(3 * v / (1 + math.exp(-v)))
        exact = 3 * v * 0.5 * (1 + math.erf(v / math.sqrt(2)))
        assert ops.act(x, "gelu")[0, 0] == pytest.approx(exact, abs=1e-12)
        inner = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
        assert ops.act(x, "gelu_tanh")[0, 0] == pytest.approx(
            1.5 * v * (1 + math.tanh(inner)), abs=1e-12
        )
    assert ops.act(np.array([[-1e4, 1]], np.float32), "silu")[0, 0] == 0


def test_bad_parts_are_refused(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    with pytest.raises(CheckpointError, match="bf16, f32"):
        ops.pack((4, 8), [part(rng, "f32", 2, 8), part(rng, "bf16", 2, 8)])
    with pytest.raises(CheckpointError, match=r"\(3, 8\).*\(4, 8\)"):
        ops.pack((4, 8), [part(rng, "f32", 3, 8)])
    with pytest.raises(ConfigError, match="int8"):
        ReferenceOps("int4")
    with pytest.raises(ConfigError, match="f16"):
        ops.make_kv_layer(KVGroup(1, 8, 8), 1, 4, "fp16")
    with pytest.raises(ConfigError, match="silu"):
        ops.act(np.zeros((1, 2), np.float32), "silo")


def test_take_and_move(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    x = normal(rng, 5, 3)
    assert (ops.take(x, ids(4, 0)) == x[[4, 0]]).all()
