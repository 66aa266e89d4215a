"""`sample` on the device equals the reference draw for draw."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_sample import logits_of, row_of, same  # noqa: E402

from flyweight.ops.cuda import sample as cuda_sample  # noqa: E402
from flyweight.ops.cuda import sample_best  # noqa: E402
from flyweight.ops.cuda.sample_options import draw_uniforms  # noqa: E402
from flyweight.ops.reference_sample import draw_uniform, log_softmax, sample  # noqa: E402
from flyweight.sampling.arrays import LogitsRow, columns  # noqa: E402
from flyweight.sampling.options import SequenceOptions  # noqa: E402
from flyweight.types import SamplingParams  # noqa: E402
from flyweight.wire import F32, SampleBatch, Sampled  # noqa: E402

CUTS = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 1e6},
    {"top_k": 3},
    {"top_k": 40, "top_p": 0.8},
    {"top_p": 0.95},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.05, "temperature": 0.7},
)


@pytest.fixture(autouse=True)
def larger_tiles(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's time goes by the number of tiles."""
    if device == "cpu":
        monkeypatch.setattr(cuda_sample, "TILE", 512)
        monkeypatch.setattr(cuda_sample, "DRAW_BLOCK", 8192)


def draw(device: str, logits: F32, s: SampleBatch) -> Sampled:
    there = torch.from_numpy(logits.copy()).to(device)
    got = cuda_sample.sample(there, s)
    np.testing.assert_array_equal(there.cpu().numpy(), logits)
    return got


def rows_of(count: int, first: int = 0, **options: object) -> list[LogitsRow]:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    return [LogitsRow(SequenceOptions(params, 7, first + r, 0), 5 + r, []) for r in range(count)]


def mixed_rows(count: int) -> list[LogitsRow]:
    """`count` rows of each of the usual cuts."""
    return [row for n, cut in enumerate(CUTS) for row in rows_of(count, 100 * n, **cut)]


@pytest.mark.parametrize("vocab", [1, 2, 33, 700])
def test_any_options(device: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = logits_of(rng, 30, vocab)
    s = columns([row_of(rng, vocab) for _ in range(30)])
    same(draw(device, logits, s), sample(logits, s))


@pytest.mark.parametrize("spread", [0.05, 2.0, 30.0])
def test_usual_cuts(device: str, spread: float) -> None:
    """More than one segment; candidates in one bucket, in many, and past the last."""
    rows = mixed_rows(1)
    logits = np.random.default_rng(6).normal(0, spread, (len(rows), 4200)).astype(np.float32)
    s = columns(rows)
    same(draw(device, logits, s), sample(logits, s))


def test_ties(device: str) -> None:
    """Few different logits, zeros of both signs among them."""
    rows = mixed_rows(2)
    rng = np.random.default_rng(7)
    logits = np.round(rng.normal(0, 1, (len(rows), 500)) * 2).astype(np.float32) / 2
    logits[:, ::7] *= -1
    logits[::3] = 3.5
    s = columns(rows)
    same(draw(device, logits, s), sample(logits, s))


def test_a_bucket_longer_than_the_list(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_sample, "LIST", 16)
    rows = mixed_rows(2)
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 0.3, (len(rows), 500)).astype(np.float32)
    logits[::2] = np.round(logits[::2] * 4) / 4
    s = columns(rows)
    same(draw(device, logits, s), sample(logits, s))


def test_banned_rows(device: str) -> None:
    """Every id is out, or all but one are; NaN counts as banned."""
    rows = mixed_rows(3)
    logits = np.full((len(rows), 70), -np.inf, np.float32)
    logits[1::3, 40] = -3
    s = columns(rows)
    same(draw(device, logits, s), sample(logits, s))
    logits[2::3] = np.nan
    logits[2::3, 1::2] = 1
    tokens = draw(device, logits, s).tokens
    assert (tokens[2::3] % 2 == 1).all() and (tokens[1::3] == 40).all()


def test_a_row_is_alone(device: str) -> None:
    """Bit for bit, whatever the other rows."""
    rng = np.random.default_rng(3)
    logits, rows = logits_of(rng, 12, 333), [row_of(rng, 333) for _ in range(12)]
    whole = draw(device, logits, columns(rows))
    for r in range(12):
        alone = draw(device, logits[r : r + 1], columns(rows[r : r + 1]))
        width = alone.top_ids.shape[1]
        assert alone.tokens[0] == whole.tokens[r] and alone.ranks[0] == whole.ranks[r]
        np.testing.assert_array_equal(alone.logprobs[0], whole.logprobs[r])
        np.testing.assert_array_equal(alone.top_ids[0], whole.top_ids[r, :width])
        np.testing.assert_array_equal(alone.top_logprobs[0], whole.top_logprobs[r, :width])


def test_listed_ids_have_their_log_probabilities(device: str) -> None:
    rng = np.random.default_rng(4)
    logits = logits_of(rng, 12, 200)
    rows = []
    for r in range(12):
        row = row_of(rng, 200)
        ids = rng.permutation(200)[: (0, 1, 30)[r % 3]].tolist()
        params = replace(row.options.params, logprob_token_ids=tuple(ids))
        options = replace(row.options, params=params, best=None)
        options.plain = options.plain and row.mask is None
        rows.append(row._replace(options=options))
    s = columns(rows)
    got = draw(device, logits, s)
    same(got, sample(logits, s))
    assert s.listed is not None
    for i, r in enumerate(s.listed.rows.tolist()):
        ids = s.listed.ids[s.listed.starts[i] : s.listed.starts[i + 1]].tolist()
        assert got.top_ids[r, : len(ids)].tolist() == ids
        want = log_softmax(logits[r])[ids]
        np.testing.assert_allclose(got.top_logprobs[r, : len(ids)], want, rtol=2.0**-21)


def test_more_best_ids_than_there_are(device: str) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    logits[:, 2] = logits[:, 5]
    s = columns(rows_of(3, logprobs=20))
    same(draw(device, logits, s), sample(logits, s))


def test_best_ids_of_groups(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few best ids of many: only some groups of ids are sorted; ties lie across groups."""
    monkeypatch.setattr(sample_best, "PLACES", 4 * 3 * 128)
    logits = np.random.default_rng(1).normal(size=(9, 1300)).astype(np.float32)
    logits[::2] = np.round(logits[::2])
    s = columns(rows_of(9, logprobs=3))
    same(draw(device, logits, s), sample(logits, s))


def test_no_rows(device: str) -> None:
    got = draw(device, np.empty((0, 9), np.float32), columns([]))
    assert got.tokens.shape == (0,) and got.top_ids.shape == (0, 0)


def test_rows_with_a_stride(device: str) -> None:
    """Logits may be the first columns of a wider tensor."""
    rows = mixed_rows(1)
    wide = torch.randn(len(rows), 320, generator=torch.Generator().manual_seed(0))
    s = columns([row._replace(given=3) if not r % 4 else row for r, row in enumerate(rows)])
    s.logprobs[:] = 2
    got = cuda_sample.sample(wide.to(device)[:, :300], s)
    same(got, sample(wide[:, :300].numpy(), s))


def test_uniform_numbers() -> None:
    rng = np.random.default_rng(0)
    rows = rows_of(50)
    s = columns(rows)
    s.seed[:] = rng.integers(0, 2**64, 50, dtype=np.uint64)
    s.choice[:] = rng.integers(0, 2**31, 50)
    got = draw_uniforms(s, np.arange(50))
    want = [
        draw_uniform(int(a), int(b), int(c))
        for a, b, c in zip(s.seed, s.choice, s.position, strict=True)
    ]
    assert got.tolist() == want
