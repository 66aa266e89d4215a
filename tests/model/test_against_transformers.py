"""Every family equals transformers on tiny random checkpoints, from safetensors and from GGUF:
whole prompts, chunks, single tokens, mixed batches, 64 greedy tokens, to the context's end.

The expected logits and greedy tokens were written by make_fixtures.py; nothing here needs torch.
"""

from pathlib import Path

import numpy as np
import pytest
from families import DOC, END, START, Report
from harness import MODELS, decoded, decoder, logits, mixed
from random_models import answers, engine, request

from flyweight.models.decoder import Decoder
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps
from flyweight.types import Request

TOLERANCE, GREEDY = 1e-3, 64
CASES = [(p.parent.name, p.name) for p in sorted(MODELS.glob("*/expected*.npz"))]
NAMES = sorted({name for name, _ in CASES})


@pytest.fixture(scope="module")
def every(at_length: bool, pytestconfig: pytest.Config) -> bool:
    """Whether both containers take all ways: in .ci/full, and for the document's table."""
    return at_length or bool(pytestconfig.getoption("--models-table"))


def judge(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, held to the tolerance."""
    error = got.astype(np.float64) - expected
    assert np.square(error).sum() / np.square(expected).sum() <= 1e-6
    worst = float(np.abs(error).max())
    assert worst <= TOLERANCE
    return worst


@pytest.mark.parametrize(("name", "file"), CASES)
def test_logits_on_every_target(name: str, file: str, backend: Ops, at_length: bool) -> None:
    """The slow targets, `reference` and `scalar`, take no chunks here, all sizes in .ci/full."""
    expected = np.load(MODELS / name / file)
    model = decoder(MODELS / name, backend, length=int(expected["length"]))
    whole = logits(model, expected["prompt"], expected["rows"])
    assert expected["logits"].std() >= 2
    judge(whole, expected["logits"])
    quick = isinstance(backend, CpuOps) and backend.isa != "scalar"
    for chunk in (7, 64) if quick or at_length else ():
        assert (whole == logits(model, expected["prompt"], expected["rows"], chunk=chunk)).all()


@pytest.mark.parametrize("container", ["safetensors", "gguf"])
@pytest.mark.parametrize(("name", "file"), CASES)
def test_every_way_of_computing(
    name: str, file: str, container: str, native: Ops, tmp_path: Path, report: Report, every: bool
) -> None:
    """What a GGUF file adds is its reading: there, logits of the whole prompt, all in .ci/full."""
    expected = np.load(MODELS / name / file)
    model = opened(name, container, native, tmp_path, int(expected["length"]))
    prompt, rows, true = expected["prompt"], expected["rows"], expected["logits"]
    errors = {"logits": judge(logits(model, prompt, rows), true)}
    if container == "gguf" and not every:
        return
    errors["chunked"] = judge(logits(model, prompt, rows, chunk=16), true)
    first = len(prompt) - 40
    late = rows >= first
    errors["decode"] = judge(decoded(model, prompt, first)[rows[late] - first], true[late])
    got, which = mixed(model, prompt, rows)
    errors["batched"] = judge(got, true[which])
    everything = np.concatenate([prompt, expected["greedy"]])[:-1]
    near = np.arange(len(everything) - 3, len(everything))
    errors["context's end"] = judge(logits(model, everything, near), expected["last"])
    greedy(model, expected)
    report.add(name, file, container, errors)


@pytest.mark.parametrize(("name", "file"), CASES)
def test_prompt_logprobs(name: str, file: str, native: Ops) -> None:
    """Through the engine, in chunks, at the rows transformers' logits are known of."""
    expected = np.load(MODELS / name / file)
    prompt = expected["prompt"].tolist()
    model = decoder(MODELS / name, native, length=int(expected["length"]))
    requested = request("a", prompt, 1, prompt_logprobs=5)
    found = answers(engine(model, "f32"), [requested])["a", 0].prompt
    compared = 0
    for row, theirs in zip(expected["rows"].tolist(), expected["logits"], strict=True):
        if row + 1 < len(prompt):
            exact = theirs.astype(np.float64)
            want = exact - np.logaddexp.reduce(exact)
            assert found[row].chosen == pytest.approx(want[prompt[row + 1]], abs=2 * TOLERANCE)
            assert found[row].top == pytest.approx(sorted(want)[:-6:-1], abs=2 * TOLERANCE)
            compared += 1
    assert compared > 3


def opened(name: str, container: str, ops: Ops, folder: Path, length: int) -> Decoder:
    """The fixture's model, or its GGUF twin's."""
    if container == "safetensors":
        return decoder(MODELS / name, ops, length=length)
    pytest.importorskip("gguf")
    from gguf_twins import NO_TWIN, twin

    if name in NO_TWIN:
        pytest.skip(f"no GGUF of it: {NO_TWIN[name]}")
    return decoder(twin(name, folder / "m.gguf"), ops, length=length)


def greedy(model: Decoder, expected: dict[str, np.ndarray]) -> None:
    """The greedy tokens, with chunks, company, prefix hits and tight memory."""
    tokens = expected["greedy"].tolist()
    run = engine(model, "f32", max_num_batched_tokens=37, block_size=16, blocks=24)
    for _ in range(2):
        for r, answer in answers(run, beginnings(expected["prompt"].tolist(), tokens)).items():
            assert list(answer.tokens) == tokens[-len(answer.tokens) :], r
    assert run.metrics.cached > 0
    assert run.metrics.preempted > 0 or len(tokens) < GREEDY


def beginnings(prompt: list[int], greedy: list[int]) -> list[Request]:
    """The prompt with more and more of its answer already there: each must go on alike, and they
    share a prefix.
    """
    known = [k for k in (0, 1, 15, 16, 17, 40, 63) if k < len(greedy)]
    return [
        request(f"after {k}", prompt + greedy[:k], len(greedy) - k, temperature=0) for k in known
    ]


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gemma2"])
def test_greedy_tokens_of_the_reference(name: str) -> None:
    from flyweight.ops.reference import ReferenceOps

    expected = np.load(MODELS / name / "expected.npz")
    run = engine(decoder(MODELS / name, ReferenceOps("f32")), "f32", max_num_batched_tokens=64)
    got = answers(run, [request("a", expected["prompt"].tolist(), GREEDY, temperature=0)])
    assert list(got["a", 0].tokens) == expected["greedy"].tolist()


def test_the_documents_table_has_every_checkpoint() -> None:
    """Its figures are a run's (`--models-table`); its rows are held to what there is."""
    pytest.importorskip("gguf")
    from gguf_twins import twins

    rows = {(name, "safetensors") for name in NAMES} | {(name, "gguf") for name in twins()}
    table = DOC.read_text().partition(START)[2].partition(END)[0]
    found = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert {(cells[0].removeprefix("| "), cells[1]) for cells in found} == rows
    for cells in found:
        assert all(float(cell) <= TOLERANCE for cell in cells[2:-1]), cells
