"""`sample` on the device equals the reference draw for draw."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_sample import logits_of, row_of, same  # noqa: E402

from flyweight.ops.cuda import sample as cuda_sample  # noqa: E402
from flyweight.ops.reference_sample import sample  # noqa: E402
from flyweight.sampling.arrays import LogitsRow, columns  # noqa: E402
from flyweight.sampling.options import SequenceOptions  # noqa: E402
from flyweight.types import SamplingParams  # noqa: E402
from flyweight.wire import F32, SampleBatch, Sampled  # noqa: E402


def draw(device: str, logits: F32, s: SampleBatch) -> Sampled:
    there = torch.from_numpy(logits).to(device)
    got = cuda_sample.sample(there, s)
    np.testing.assert_array_equal(there.cpu().numpy(), logits)
    return got


def rows_of(count: int, **options: object) -> list[LogitsRow]:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    return [LogitsRow(SequenceOptions(params, 7, r, 0), 5 + r, []) for r in range(count)]


def check(device: str, logits: F32, **options: object) -> None:
    s = columns(rows_of(len(logits), **options))
    same(draw(device, logits, s), sample(logits, s))


@pytest.mark.parametrize("vocab", [1, 2, 33, 500, 4099])
def test_any_options(device: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = logits_of(rng, 40, vocab)
    s = columns([row_of(rng, vocab) for _ in range(40)])
    same(draw(device, logits, s), sample(logits, s))
