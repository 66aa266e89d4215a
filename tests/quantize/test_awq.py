"""AWQ's scales and clips against the same searches written out with the activations themselves."""

import numpy as np
import pytest
from correlated import make_activations, make_weights, measure_loss

from flyweight.quantize.awq import (
    GRID,
    SHRINKS,
    clip_rows,
    divide_gram,
    measure_error,
    search_clips,
    search_scales,
)
from flyweight.quantize.folds import Fold
from flyweight.wire import F32

GROUP = 32


def round_trip(w: F32, bits: int = 4) -> F32:
    """Rounding to nearest with a zero point for each 32 columns."""
    held, most = w.reshape(len(w), -1, GROUP), (1 << bits) - 1
    low, high = np.minimum(held.min(2), 0), np.maximum(held.max(2), 0)
    scale = np.maximum(high - low, 1e-9) / most
    zero = np.rint(-low / scale)
    codes = np.rint(held / scale[:, :, None]) + zero[:, :, None]
    codes = np.clip(codes, 0, most) - zero[:, :, None]
    return (codes * scale[:, :, None]).reshape(w.shape).astype(np.float32)


def round_3(w: F32) -> F32:
    return round_trip(w, 3)


def list_scales(ws: list[F32], x: F32) -> list[F32]:
    """Every candidate, by the paper's formulas."""
    size = np.abs(x).astype(np.float64).mean(axis=0)
    whole = np.concatenate(ws).astype(np.float64)
    weight = (np.abs(whole) / np.abs(whole).max(axis=1, keepdims=True)).mean(axis=0)
    found = [np.ones(x.shape[1])]
    for part in range(GRID):
        a = part / GRID
        for s in (size**a, size**a / weight ** (1 - a)):
            found.append(s / np.sqrt(s.max() * s.min()))
    return [s.astype(np.float32) for s in found]


def test_scales_are_the_best_of_all_candidates() -> None:
    x, ws = make_activations(300, 64), [make_weights(40, 64), make_weights(24, 64, 5)]
    whole = np.concatenate(ws)
    losses = [measure_loss(x, whole, round_trip(whole * s) / s) for s in list_scales(ws, x)]
    found = search_scales(ws, x.T @ x, np.abs(x).sum(axis=0), round_trip)
    best = list_scales(ws, x)[int(np.argmin(losses))]
    assert np.allclose(found, best, rtol=1e-4)
    assert min(losses) < 0.5 * losses[0]


@pytest.mark.parametrize("rounds", [round_trip, round_3])
def test_scales_and_clips_beat_rounding(rounds) -> None:  # type: ignore[no-untyped-def]
    """On tokens that the search has not seen, with rows it has not seen."""
    x = make_activations(3000, 256)
    seen, unseen, w = x[:2000], x[2000:], make_weights(512, 256)
    gram = seen.T @ seen
    s = search_scales([w], gram, np.abs(seen).mean(axis=0), rounds, sampled=256)
    clips = search_clips(w * s, divide_gram(gram, s), rounds, GROUP)
    plain = measure_loss(unseen, w, rounds(w))
    scaled = measure_loss(unseen, w, rounds(w * s) / s)
    clipped = measure_loss(unseen, w, rounds(clip_rows(w * s, clips)) / s)
    assert scaled < 0.7 * plain
    assert clipped < 0.97 * scaled


def test_clips_are_the_best_of_each_group() -> None:
    x, w = make_activations(200, 96), make_weights(10, 96)
    found = search_clips(w, x.T @ x, round_3, GROUP)
    losses = []
    for shrink in SHRINKS:
        lost = np.empty((10, 3))
        clipped = round_3(clip_rows(w, np.full((10, 3), shrink, np.float32)))
        for row in range(10):
            for g in range(3):
                at = slice(g * GROUP, (g + 1) * GROUP)
                error = x[:, at].astype(np.float64) @ (w[row, at] - clipped[row, at])
                lost[row, g] = np.square(error).sum()
        losses.append(lost)
    assert (found == np.array(SHRINKS, np.float32)[np.argmin(losses, axis=0)]).all()
    assert (found < 1).any() and (found == 1).any()


def test_clipping_keeps_both_ends_of_a_group() -> None:
    w = np.array([[-4, 1, 2, 8], [1, 2, 3, 4]], np.float32)
    factors = np.full((2, 1), 0.5, np.float32)
    assert clip_rows(w, factors).tolist() == [[-2, 1, 2, 4], [1, 2, 2, 2]]
    assert (clip_rows(w, np.ones((2, 2), np.float32)) == w).all()


def test_scales_are_tied_where_they_must_be() -> None:
    x, w = make_activations(300, 128), make_weights(32, 128)
    fold = Fold(("out",), ("qkv",), 128, 16, 0, 4)
    found = search_scales([w], x.T @ x, np.abs(x).sum(axis=0), round_trip, fold.tie)
    heads = found.reshape(2, 4, 16)
    assert (heads == heads[:, :1]).all()
    assert (heads != 1).any()


def test_channels_without_input_or_weight_keep_the_scale_1() -> None:
    x, w = make_activations(300, 64), make_weights(32, 64)
    x[:, 5], w[:, 9] = 0, 0
    found = search_scales([w], x.T @ x, np.abs(x).sum(axis=0), round_trip)
    assert found[5] == found[9] == 1
    assert np.isfinite(found).all() and (found > 0).all()
    nothing = search_scales([w], np.zeros_like(x.T @ x), np.zeros(64, np.float32), round_trip)
    assert (nothing == 1).all()


def test_the_gram_matrix_says_what_the_activations_say() -> None:
    x, w = make_activations(500, 64), make_weights(8, 64)
    lost, s = w - round_3(w), np.exp(make_weights(1, 64)[0])
    exact = np.square(x.astype(np.float64) @ lost.T.astype(np.float64)).sum()
    assert np.isclose(measure_error(lost, x.T @ x), exact, rtol=1e-4)
    divided = divide_gram(x.T @ x, s)
    assert np.allclose(divided, (x / s).T @ (x / s), rtol=1e-3, atol=1e-3 * divided.max())
