"""Error feedback in GGUF's blocks against the same written out in NumPy, column by column; grids
are those that the gguf package makes of the blocks.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from correlated import make_activations, make_weights, measure_loss
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.ggml import feedback
from flyweight.quantize.ggml.encode import BLOCKS, BlockEncoder
from flyweight.quantize.ggml.feedback import ColumnWeights, encode_with_feedback
from flyweight.quantize.ggml.pack import pack
from flyweight.quantize.gptq import Gptq, invert_hessian
from flyweight.quantize.method import MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.statistics import InputStatistics
from flyweight.weights.formats import FORMATS
from flyweight.wire import F32, U8

N, K, TOKENS = 40, 512, 1500


@pytest.fixture(scope="module")
def encoder() -> BlockEncoder:
    return BlockEncoder(1)


@pytest.fixture(scope="module")
def inputs() -> F32:
    return make_activations(TOKENS, K)


def make_columns(x: F32) -> ColumnWeights:
    gram = x.T @ x
    importance = np.diagonal(gram) / np.float32(len(x))
    return ColumnWeights(importance, invert_hessian(gram, 0.01, "x").factor)


def decode(kind: str, raw: U8) -> F32:
    """By the gguf package."""
    return np.asarray(dequantize(raw, GGMLQuantizationType[kind.upper()]), np.float32)


# --- the reference ---


def list_levels(kind: str, fitted: GroupedWeight) -> F32:
    """[codes, N, block]: what each code means at each place of the blocks."""
    whole = fitted.codes.dtype == np.int8
    numbers = range(-128, 128) if whole else range(1 << fitted.bits)
    filled = (replace(fitted, codes=np.full_like(fitted.codes, number)) for number in numbers)
    return np.stack([decode(kind, pack(each)) for each in filled])


def sweep_plainly(encoder: BlockEncoder, kind: str, rows: F32, columns: ColumnWeights) -> F32:
    """The weights that are kept [N, K]."""
    block, factor = FORMATS[kind].block, columns.factor.astype(np.float64)
    w, kept = rows.astype(np.float64), np.empty(rows.shape, np.float32)
    for first in range(0, rows.shape[1], block):
        own = slice(first, first + block)
        now = np.ascontiguousarray(w[:, own], np.float32)
        raw = encoder.encode(kind, now, columns.importance[own])
        fitted: Any = FORMATS[kind].parse(raw, now.shape)
        levels = list_levels(kind, fitted)
        for j in range(first, first + block):
            choices = levels[:, :, j - first]
            nearest = np.abs(choices - w[:, j]).argmin(axis=0)
            kept[:, j] = choices[nearest, np.arange(len(w))]
            error = (w[:, j] - kept[:, j]) / factor[j, j]
            w[:, j:] -= error[:, None] * factor[j, j:]
    return kept


# --- the tests ---


@pytest.mark.parametrize("kind", BLOCKS)
def test_is_the_sweep_written_out(encoder: BlockEncoder, inputs: F32, kind: str) -> None:
    """But for the rows where float32 and float64 once round differently: later blocks follow."""
    rows, columns = make_weights(N, K), make_columns(inputs)
    found = decode(kind, encode_with_feedback(encoder, kind, rows, columns))
    wanted = sweep_plainly(encoder, kind, rows, columns)
    assert (found == wanted).mean() > 0.9
    loss = measure_loss(inputs, rows, wanted)
    assert measure_loss(inputs, rows, found) == pytest.approx(loss, rel=0.02)


@pytest.mark.parametrize("kind", BLOCKS)
def test_loses_less_than_the_plain_encoder(encoder: BlockEncoder, inputs: F32, kind: str) -> None:
    """On inputs that the Hessian has not seen."""
    rows, columns = make_weights(N, K), make_columns(inputs[: TOKENS * 2 // 3])
    held = inputs[TOKENS * 2 // 3 :]
    plain = decode(kind, encoder.encode(kind, rows, columns.importance))
    swept = decode(kind, encode_with_feedback(encoder, kind, rows, columns))
    assert measure_loss(held, rows, swept) < 0.8 * measure_loss(held, rows, plain)


def test_grids_of_the_first_blocks_are_the_encoders(encoder: BlockEncoder, inputs: F32) -> None:
    rows, columns = make_weights(N, K), make_columns(inputs)
    plain: Any = FORMATS["q5_1"].parse(encoder.encode("q5_1", rows[:, :32]), (N, 32))
    level = replace(columns, importance=np.ones(K, np.float32))
    swept: Any = FORMATS["q5_1"].parse(encode_with_feedback(encoder, "q5_1", rows, level), (N, K))
    assert np.array_equal(swept.scales[:, :1], plain.scales)
    assert np.array_equal(swept.mins[:, :1], plain.mins)


def test_rows_are_swept_a_few_at_a_time(
    encoder: BlockEncoder, inputs: F32, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = make_weights(N, K), make_columns(inputs)
    whole = encode_with_feedback(encoder, "q4_k", rows, columns)
    monkeypatch.setattr(feedback, "ROWS", 7)
    parts = encode_with_feedback(encoder, "q4_k", rows, columns)
    assert parts.shape == whole.shape and (parts == whole).mean() > 0.9


@pytest.mark.parametrize("kind", BLOCKS)
def test_rows_of_zeros_stay_zeros(encoder: BlockEncoder, inputs: F32, kind: str) -> None:
    rows = np.zeros((3, K), np.float32)
    assert not decode(kind, encode_with_feedback(encoder, kind, rows, make_columns(inputs))).any()


def test_the_method_makes_blocks(encoder: BlockEncoder, inputs: F32) -> None:
    """With the statistics that it is given; without any as the plain encoder."""
    rows, seen = make_weights(N, K), InputStatistics(K, lambda h, x: np.add(h, x.T @ x, out=h))
    seen.take(inputs)
    method, four = Gptq(MethodSettings()), Precision(4, 32, type="q4_0")
    found, plain = method.round("x", rows, four, seen), method.round("x", rows, four, None)
    wanted = encode_with_feedback(encoder, "q4_0", rows, make_columns(inputs))
    assert found.kind == "q4_0" and (found.raw == wanted).mean() > 0.9
    assert np.array_equal(plain.raw, encoder.encode("q4_0", rows))
