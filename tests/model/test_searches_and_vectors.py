"""Hidden states and beam search against transformers' own, on the same checkpoints."""

import numpy as np
import pytest
from harness import MODELS, decoder
from random_models import engine

from flyweight.ops.base import Ops
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.types import Event, Request, SamplingParams

DECODING = MODELS.parent / "decoding"
PROMPT, STEPS, EARLY = 20, 24, (False, True, "never")  # of make_decoding_fixtures.py
NAMES = sorted(p.stem for p in DECODING.glob("*.npz"))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_transformers_hidden_states(name: str, native: Ops) -> None:
    expected = np.load(DECODING / f"{name}.npz")
    prompt = np.load(MODELS / name / "expected.npz")["prompt"].tolist()
    run = engine(decoder(MODELS / name, native), "f32", max_num_batched_tokens=37)
    for kind in ("mean", "last"):
        pooling = PoolingParams(kind, normalize=False)
        run.add(Request(kind, tuple(prompt), SamplingParams(), max_tokens=0, pooling=pooling))
    found = {}
    while run.busy:
        found |= {event.id: event.vector for event in run.step() if event.finish}
    for kind, vector in found.items():
        assert np.abs(np.array(vector) - expected[kind]).max() < 2e-4, kind
    assert len(found) == 2


def searches(name: str) -> tuple[list[Request], list[list[tuple[int, ...]]], list[np.ndarray]]:
    """Every case as a request, the sequences transformers found, and their scores."""
    expected = np.load(DECODING / f"{name}.npz")
    prompt = tuple(np.load(MODELS / name / "expected.npz")["prompt"][:PROMPT].tolist())
    requests, sequences, scores = [], [], []
    for i, (width, penalty, early) in enumerate(expected["case"].tolist()):
        beam = BeamSearchParams(
            beam_width=int(width), length_penalty=penalty, early_stopping=EARLY[int(early)]
        )
        ends = frozenset(expected["eos"][i].tolist())
        params = SamplingParams(temperature=0)
        salt = str(i % 5)  # so that not all share one prompt
        requests.append(Request(f"{i}", prompt, params, ends, STEPS, salt=salt, beam=beam))
        rows = expected["tokens"][i, : int(width)]
        sequences.append([tuple(row[row >= 0].tolist()) for row in rows])
        scores.append(expected["scores"][i, : int(width)])
    return requests, sequences, scores


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="at ease"),
        pytest.param(
            {"max_num_batched_tokens": 16, "block_size": 4, "blocks": 60, "max_num_seqs": 16},
            id="tight memory, chunks, half-full blocks",
        ),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_searches_find_what_transformers_finds(name: str, limits: dict, native: Ops) -> None:
    requests, sequences, scores = searches(name)
    run = engine(decoder(MODELS / name, native), "f32", **limits)
    for request in requests:
        run.add(request)
    found: dict[tuple[str, int], Event] = {}
    while run.busy:
        found |= {(event.id, event.index): event for event in run.step()}
        run.scheduler.pool.check_integrity([seq.table for seq in run.scheduler.running])
    for i, request in enumerate(requests):
        events = [found[request.id, k] for k in range(request.width)]
        assert [event.tokens for event in events] == sequences[i], request.beam
        assert np.abs([e.score for e in events] - scores[i]).max() < 1e-4, request.beam
    assert len(requests) > 50 and run.metrics.copied > 100
    assert bool(run.metrics.preempted) == bool(limits)
