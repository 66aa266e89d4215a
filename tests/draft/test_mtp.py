"""Multi-token prediction: drafts are what the layer's arithmetic says of the text, and change no
token; a model without such a layer is refused.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_drafts import CheckedDrafter
from predicting_model import (
    AT,
    CONFIG,
    Reference,
    Tensors,
    fit_tensors,
    load_model,
    make_tensors,
    write_model,
)
from small_engine import ROOMY, TIGHT, drain, make_engine, make_prompts, make_requests
from test_quantised_families import write_fp8

from edited_folder import EditedFolder
from filewriters import encode
from flyweight import LLM, SamplingParams
from flyweight.draft.methods import DraftBase, DrafterParts
from flyweight.draft.mtp import PredictionLayer, PredictorSource, make_drafter, open_source
from flyweight.draft.statedrafter import StateDrafter
from flyweight.errors import CheckpointError, ConfigError
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.models.norms import Plain
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.memory import Needs, Sizing, make_smallest_plan
from flyweight.speculation import read_speculation
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from tiny_model import tiny_folder

PROMPTS = make_prompts(6)
CHUNKED = replace(ROOMY, max_chunk=5, prefix_caching=False)
MTP = {"method": "mtp", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    return fit_tensors(tmp_path_factory.mktemp("random"), PROMPTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tensors: Tensors) -> Path:
    return write_model(tmp_path_factory.mktemp("fitted"), tensors)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[tuple[Decoder, Checkpoint]]:
    model, checkpoint = load_model(folder, ReferenceOps("f32"))
    yield model, checkpoint
    checkpoint.close()


def open_layer(model: Decoder, checkpoint: Checkpoint, **options: Any) -> PredictorSource:
    config = read_speculation({**MTP, **options})
    assert config is not None
    return open_source(config, DraftBase(model.spec, "", ROOMY.block_size, checkpoint))


def make(
    model: Decoder, checkpoint: Checkpoint, limits: Any = ROOMY, **options: Any
) -> StateDrafter:
    config = read_speculation({**MTP, **options})
    assert config is not None
    source = open_layer(model, checkpoint, **options)
    return make_drafter(config, DrafterParts(limits, model.spec.vocab, model, source))


def check_every_draft(loaded: Any, tensors: Tensors, limits: Any) -> tuple[int, int]:
    """How many drafts were compared, and how many of them were wrong."""
    drafter = make(*loaded, limits)
    drafter.__class__ = CheckedDrafter
    assert isinstance(drafter, CheckedDrafter)
    drafter.reference = Reference(loaded[0], tensors)
    requests = [r for r in make_requests(PROMPTS, 24) if r.params.temperature == 0]
    drain(make_engine(loaded[0], limits, drafter), requests)
    return drafter.compared, drafter.wrong


@pytest.mark.parametrize("limits", [ROOMY, CHUNKED])
def test_drafts_are_what_the_layer_says(loaded: Any, tensors: Tensors, limits: Any) -> None:
    compared, wrong = check_every_draft(loaded, tensors, limits)
    assert compared > 10 and wrong == 0


def test_the_layer_is_read_in_fp8_as_it_is_published(tmp_path: Path) -> None:
    """Matrices of the decoder layer are codes with a scale a block; eh_proj and norms are not."""
    rng, written, values = np.random.default_rng(6), dict[str, Any](), dict[str, Any]()
    for name, x in make_tensors().items():
        coded = x.ndim == 2 and ("self_attn" in name or "mlp." in name) and ".gate." not in name
        if coded:
            codes, values[name] = write_fp8(name, rng, (x.shape[0], x.shape[1]))
            written |= codes
        else:
            written[name], values[name] = ("F32", x), x
    method = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    folder = EditedFolder({**CONFIG, "quantization_config": method}, {}, written)
    model, checkpoint = load_model(folder.write(tmp_path / "fp8"), ReferenceOps("f32"))
    compared, wrong = check_every_draft((model, checkpoint), values, ROOMY)
    checkpoint.close()
    assert compared > 10 and wrong == 0


def _shift_states(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = StateDrafter.observe

    def shifted(self: StateDrafter, batch: Any, taps: Any) -> None:
        observe(self, batch, {-1: np.roll(taps[-1], 1, axis=0)})

    monkeypatch.setattr(StateDrafter, "observe", shifted)


def _swap_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = PredictionLayer.__init__

    def swapped(self: PredictionLayer, *parts: Any) -> None:
        begin(self, *parts)
        self.enorm, self.hnorm = self.hnorm, self.enorm

    monkeypatch.setattr(PredictionLayer, "__init__", swapped)


def _forget_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = PredictionLayer.__init__

    def unnormed(self: PredictionLayer, *parts: Any) -> None:
        begin(self, *parts)
        self.norm = Plain(self.ops)

    monkeypatch.setattr(PredictionLayer, "__init__", unnormed)


@pytest.mark.parametrize("seed", [_shift_states, _swap_halves, _forget_the_norm])
def test_a_seeded_bug_is_caught(
    loaded: Any, tensors: Tensors, monkeypatch: pytest.MonkeyPatch, seed: Any
) -> None:
    seed(monkeypatch)
    compared, wrong = check_every_draft(loaded, tensors, ROOMY)
    assert wrong > compared / 4


BARE = replace(ROOMY, prefix_caching=False)


@pytest.mark.parametrize(
    ("backend", "limits"), [("cpu", ROOMY), ("cpu", TIGHT), ("cpu", BARE), ("reference", TIGHT)]
)
def test_no_token_changes(folder: Path, backend: str, limits: Any) -> None:
    model, checkpoint = load_model(
        folder, CpuOps(1, None, "f32") if backend == "cpu" else ReferenceOps("f32")
    )
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(model), [request])
    engine = make_engine(model, limits, make(model, checkpoint, limits))
    assert drain(engine, requests) == expected
    checkpoint.close()
    found = engine.metrics
    assert found.proposed > found.accepted > 20 and found.drafts > 20
    assert bool(found.preempted) == (limits is TIGHT)
    assert bool(found.cached) == limits.prefix_caching


@pytest.mark.parametrize(
    "tree", [{"tree_width": 2}, {"speculative_token_tree": "[(0,),(1,),(0,0)]"}]
)
def test_no_token_changes_with_trees(loaded: Any, tree: dict[str, Any]) -> None:
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(loaded[0]), [request])
    engine = make_engine(loaded[0], ROOMY, make(*loaded, ROOMY, **tree))
    assert drain(engine, requests) == expected
    assert engine.metrics.proposed > engine.metrics.accepted > 20


@pytest.mark.parametrize("count", [1, 2])
def test_the_model_is_the_same_with_and_without_the_layers(tmp_path: Path, count: int) -> None:
    request = make_requests(PROMPTS)[0]
    texts = []
    for extra in (0, count):
        path = write_model(
            tmp_path / str(extra), make_tensors(extra=count), num_nextn_predict_layers=extra
        )
        model, checkpoint = load_model(path, ReferenceOps("f32"))
        texts.append(drain(make_engine(model), [request]))
        checkpoint.close()
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("config", "drop", "says"),
    [
        ({"num_nextn_predict_layers": 0}, "", r"this one \(deepseek_v3\) has none; nearest valid"),
        ({}, f"{AT}eh_proj.weight", rf"= 1, but the files have no {AT}eh_proj.weight; nearest"),
        ({}, f"{AT}hnorm.weight", rf"{AT}hnorm.weight"),
        ({"num_nextn_predict_layers": "one"}, "", "num_nextn_predict_layers = 'one'"),
    ],
)
def test_a_model_without_the_layer_is_refused(
    tmp_path: Path, config: Any, drop: str, says: str
) -> None:
    tensors = make_tensors()
    model, checkpoint = load_model(write_model(tmp_path / "whole", tensors), ReferenceOps("f32"))
    checkpoint.close()
    tensors.pop(drop, None)
    checkpoint = open_checkpoint(write_model(tmp_path / "less", tensors, **config))
    with pytest.raises((ConfigError, CheckpointError), match=says) as refused:
        make(model, checkpoint)
    assert "\n" not in str(refused.value)
    checkpoint.close()


@pytest.mark.parametrize("dtype", ["f16", "int8"])
def test_the_plan_counts_what_is_stored(loaded: Any, dtype: str) -> None:
    """Its K/V is of the backend's own type, whatever the model's is."""
    model, checkpoint = loaded
    ops, source = (
        CpuOps(1, None, "f32"),
        open_layer(model, checkpoint),
    )
    own = source.kinds, source.stored, ops, source.name
    needs = Needs.of(model.spec, source.kinds, ops).add_heads(*own)
    sizing = Sizing(96, 4, 48, 16, dtype, blocks=8)
    plan = make_smallest_plan(needs, sizing, (0, 1 << 40))
    limits = replace(ROOMY, block_size=16, blocks=8)
    layers = allocate_kv(source.plan.spec, ops, limits, ops.kv_dtype)
    states = 8 * 16 * (4 * CONFIG["hidden_size"] + 8)
    assert plan.draft_kv == sum(layer.nbytes for layer in layers) + states


def test_python_loads_a_model_with_its_layer(tmp_path: Path) -> None:
    """By vLLM's names of the method; drafts are as long as is wished, though there is one layer."""
    config = {**CONFIG, "vocab_size": 483}
    made = {name: encode(x, "f32") for name, x in make_tensors(config).items()}
    path = tiny_folder(tmp_path / "model", {**config, "architectures": None}, made)
    params = [SamplingParams(temperature=t, max_tokens=24, seed=3) for t in (0.0, 0.8)]
    prompts = ["one two three", "and so on"]
    with LLM(str(path), max_model_len=128) as plain:
        expected = [out.outputs[0].token_ids for out in plain.generate(prompts, params)]
    given = {"method": "deepseek_mtp", "num_speculative_tokens": 5, "adaptive": False}
    with LLM(str(path), max_model_len=128, speculative_config=given) as drafted:
        found = [out.outputs[0].token_ids for out in drafted.generate(prompts, params)]
        stats = drafted.stats()
    assert found == expected
    assert stats["proposed"] > stats["accepted"] >= 0


def test_another_model_is_refused_by_its_family() -> None:
    with pytest.raises(ConfigError, match=r"this one \(llama\) has none; nearest valid: ngram, or"):
        LLM("stories", speculative_config={"method": "mtp"})
