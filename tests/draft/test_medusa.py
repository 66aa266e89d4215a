"""Medusa heads: they propose what their arithmetic says of the text, and change no token."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitted_heads import Heads, fit_heads, guess
from small_engine import (
    ROOMY,
    TIGHT,
    drain,
    make_engine,
    make_model,
    make_prompts,
    make_requests,
)

from filewriters import encode, write_safetensors
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.medusa import MedusaDrafter, load_medusa, open_medusa
from flyweight.draft.stepstates import StepStates
from flyweight.errors import CheckpointError
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.wire import F32
from torchwriter import torch_bytes

PROMPTS = make_prompts(6)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(ReferenceOps("f32"))


@pytest.fixture(scope="module")
def heads(model: Decoder) -> Heads:
    return fit_heads(model, PROMPTS)


def name_published(heads: Heads) -> dict[str, F32]:
    """FasterDecoding's names."""
    found: dict[str, F32] = {}
    for i, (blocks, head) in enumerate(heads):
        for j, (w, b) in enumerate(blocks):
            found |= {f"{i}.{j}.linear.weight": w, f"{i}.{j}.linear.bias": b}
        found[f"{i}.{len(blocks)}.weight"] = head
    return found


def name_vllm(heads: Heads) -> dict[str, F32]:
    found: dict[str, F32] = {}
    for i, (blocks, head) in enumerate(heads):
        for j, (w, b) in enumerate(blocks):
            found |= {f"blocks.{i}.layers.{j}.weight": w, f"blocks.{i}.layers.{j}.bias": b}
        found[f"lm_heads.{i}.weight"] = head
    return found


def write(path: Path, tensors: dict[str, F32], file: str, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    encoded = {name: encode(x, "f32") for name, x in tensors.items()}
    if file.endswith(".safetensors"):
        write_safetensors(path / file, encoded)
    else:
        (path / file).write_bytes(torch_bytes(encoded))
    return path


def make_drafter(folder: Path, model: Decoder) -> MedusaDrafter:
    opened, names = open_medusa(folder, model.spec, "base")
    loaded = load_medusa(opened, names, model.ops)
    return MedusaDrafter(loaded, model.ops, model.compute_logits, ROOMY.block_size)


@pytest.fixture
def folder(tmp_path: Path, heads: Heads) -> Path:
    return write(tmp_path / "heads", name_published(heads), "medusa_lm_head.pt")


class Checked(MedusaDrafter):
    """Compares each draft with what the heads say of the text alone."""

    model: Decoder
    expected: Heads
    compared = wrong = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            right = guess(self.model, self.expected, request.tokens)
            self.wrong += list(draft.tokens) != right[: request.limit]
            self.compared += 1
        return drafts


def check_every_draft(model: Decoder, heads: Heads, folder: Path, limits: Any) -> int:
    drafter = make_drafter(folder, model)
    drafter.__class__ = Checked
    assert isinstance(drafter, Checked)
    drafter.model, drafter.expected = model, heads
    engine = make_engine(model, limits, drafter)
    drain(engine, make_requests(PROMPTS))
    assert bool(engine.metrics.preempted) == (limits.blocks == TIGHT.blocks)
    assert not drafter.wrong  # counted, as the engine goes on without a drafter that raises
    return drafter.compared


@pytest.mark.parametrize("limits", [ROOMY, TIGHT])
def test_drafts_are_what_the_heads_say(
    model: Decoder, heads: Heads, folder: Path, limits: Any
) -> None:
    assert check_every_draft(model, heads, folder, limits) > 50


def test_a_stale_tap_is_caught(
    model: Decoder, heads: Heads, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, older = StepStates.__init__, []

    def stale(self: StepStates, batch: Any, taps: Any, block_size: int) -> None:
        make(self, batch, taps, block_size)
        older.append(self.taps)
        if len(older) > 1 and len(older[-2][-1]) >= len(batch.tokens):
            self.taps = older[-2]  # the step before

    monkeypatch.setattr(StepStates, "__init__", stale)
    with pytest.raises(AssertionError):
        check_every_draft(model, heads, folder, ROOMY)


def test_a_row_off_by_one_is_caught(
    model: Decoder, heads: Heads, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = StepStates.find
    monkeypatch.setattr(StepStates, "find", lambda self, x: max(0, (find(self, x) or 0) - 1))
    with pytest.raises(AssertionError):
        check_every_draft(model, heads, folder, ROOMY)


@pytest.mark.parametrize("limits", [ROOMY, TIGHT, replace(ROOMY, prefix_caching=False)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_token_changes(heads: Heads, folder: Path, backend: str, limits: Any) -> None:
    model = make_model(CpuOps(1, None, "f32") if backend == "cpu" else ReferenceOps("f32"))
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(model), [request])
    engine = make_engine(model, limits, make_drafter(folder, model))
    assert drain(engine, requests) == expected
    found = engine.metrics
    assert found.accepted > 20 and found.proposed > found.accepted and found.drafts > 20
    assert bool(found.preempted) == (limits is TIGHT)
    assert bool(found.cached) == limits.prefix_caching


def test_every_published_layout_gives_the_same(
    model: Decoder, heads: Heads, folder: Path, tmp_path: Path
) -> None:
    others = [
        write(
            tmp_path / "a", name_published(heads), "medusa_lm_head.safetensors", medusa_num_heads=3
        ),
        write(tmp_path / "b", name_vllm(heads), "model.safetensors", hidden_size=32, vocab_size=40),
        write(
            tmp_path / "c",
            {f"medusa_heads.{name}": x for name, x in name_vllm(heads).items()},
            "pytorch_model.bin",
        ),
    ]

    def count(folder: Path) -> tuple[int, int]:
        engine = make_engine(model, ROOMY, make_drafter(folder, model))
        drain(engine, make_requests(PROMPTS))
        return engine.metrics.proposed, engine.metrics.accepted

    assert len({count(path) for path in (folder, *others)}) == 1


def test_heads_without_an_output_matrix_use_the_model_s(model: Decoder, tmp_path: Path) -> None:
    none = np.zeros((32, 32), np.float32)
    path = write(tmp_path / "h", {"blocks.0.layers.0.weight": none}, "model.safetensors")
    drafter = make_drafter(path, model)
    assert drafter.heads[0].head is None
    engine = make_engine(model, ROOMY, drafter)
    requests = make_requests(PROMPTS)
    assert drain(engine, requests) == drain(make_engine(model), requests)
    assert engine.metrics.proposed  # the head repeats the token that the model has just chosen


REFUSED = {
    "another width": ({"0.0.linear.weight": (48, 48)}, {}, r"\[48, 48\], .* needs \[32, 32\]"),
    "another vocabulary": ({"0.1.weight": (41, 32)}, {}, r"\[41, 32\], .* needs \[40, 32\]"),
    "a bias too long": ({"0.0.linear.bias": (33,)}, {}, r"0\.0\.linear\.bias.* needs \[32\]"),
    "a config of another": ({}, {"hidden_size": 64}, "hidden_size = 64, this model has 32"),
    "another fingerprint": ({}, {"base_fingerprint": "other"}, "base_fingerprint = 'other'"),
    "a part of the vocabulary": ({"token_map": (3,)}, {}, "part of the vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_heads_of_another_model_are_refused(
    model: Decoder, heads: Heads, tmp_path: Path, what: str
) -> None:
    shapes, config, message = REFUSED[what]
    tensors = name_published(heads)
    tensors |= {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    path = write(tmp_path / "h", tensors, "model.safetensors", **config)
    with pytest.raises(CheckpointError, match=message) as refused:
        open_medusa(path, model.spec, "base")
    assert "\n" not in str(refused.value)


def test_folders_without_heads_are_refused(model: Decoder, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_medusa(tmp_path, model.spec, "base")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"looked for model\.safetensors"):
        open_medusa(tmp_path, model.spec, "base")
    path = write(tmp_path / "h", {"x": np.zeros(3, np.float32)}, "model.safetensors")
    with pytest.raises(CheckpointError, match="no Medusa heads"):
        open_medusa(path, model.spec, "base")
    broken = {"0.0.linear.weight": np.full((32, 32), np.nan, np.float32)}
    path = write(tmp_path / "nan", broken, "model.safetensors")
    with pytest.raises(CheckpointError, match="NaN"):
        load_medusa(*open_medusa(path, model.spec, "base"), model.ops)
