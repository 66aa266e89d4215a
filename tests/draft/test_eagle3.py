"""EAGLE-3: its drafts are what the layer's arithmetic says of the text, and change no token."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_drafts import CheckedDrafter
from eagle3_heads import IDS, KNOWN, Eagle3Reference, Tensors, choose_ids, fit_tensors, write
from small_engine import ROOMY, TIGHT, drain, make_engine, make_model, make_prompts, make_requests

from flyweight import LLM, SamplingParams
from flyweight import build as building
from flyweight.draft.eagle3 import Eagle3Model, open_source
from flyweight.draft.eagle3folder import load_eagle3
from flyweight.draft.methods import DraftBase
from flyweight.errors import CheckpointError, FlyweightError
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.speculation import SpeculationConfig

PROMPTS = make_prompts(6)
TAPPED: dict[str, Any] = {IDS: [1, 2, 3]}  # vLLM's numbers: what goes into these layers

OFFSETS = choose_ids() - np.arange(KNOWN)


@cache
def fit(model: Decoder, at: str = "midlayer.") -> Tensors:
    return fit_tensors(model, PROMPTS, at)


def open_folder(path: Path, model: Decoder) -> Any:
    config = SpeculationConfig("eagle3", 3, {"model": str(path)})
    return open_source(config, DraftBase(model.spec, "base"))


def make_drafter(path: Path, model: Decoder, limits: Any = ROOMY) -> CheckedDrafter:
    source = open_folder(path, model)
    layers = allocate_kv(source.spec, model.ops, limits, "f32")
    own = load_eagle3(source, model)
    eagle = Eagle3Model(model, own, source.layout, limits.max_model_len)
    return CheckedDrafter(eagle, layers, limits.blocks)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(ReferenceOps("f32"))


@pytest.fixture
def folder(tmp_path: Path, model: Decoder) -> Path:
    return write(tmp_path / "eagle3", fit(model), offsets=OFFSETS, **TAPPED)


def make_reference(model: Decoder, **changes: Any) -> Eagle3Reference:
    found = Eagle3Reference(model, fit(model), known=choose_ids().tolist())
    return replace(found, **changes)


def compare(model: Decoder, path: Path, reference: Eagle3Reference, limits: Any) -> tuple[int, int]:
    """How many drafts were compared, and how many of them were wrong."""
    drafter = make_drafter(path, model, limits)
    drafter.reference = reference
    requests = [r for r in make_requests(PROMPTS, 12) if r.params.temperature == 0]
    drain(make_engine(model, limits, drafter), requests)
    return drafter.compared, drafter.wrong


CHUNKED = replace(ROOMY, max_chunk=5, prefix_caching=False)


@pytest.mark.parametrize("limits", [ROOMY, CHUNKED])
def test_drafts_are_what_the_layer_says(model: Decoder, folder: Path, limits: Any) -> None:
    compared, wrong = compare(model, folder, make_reference(model), limits)
    assert compared > 10 and wrong == 0


def test_other_layouts(model: Decoder, tmp_path: Path) -> None:
    """Speculators' config and names, an embedding of its own, no part of the vocabulary; SGLang's
    numbers of layers; the target's output matrix.
    """
    tensors = fit(model, "layers.0.")
    own = np.random.default_rng(8).normal(0, 0.3, (40, 32)).astype(np.float32)
    tensors |= {"embed_tokens.weight": own, "lm_head.weight": own[::-1].copy()}
    nested = {"rms_norm_eps": 1e-5, "intermediate_size": 48, "vocab_size": 40}
    config = {**TAPPED, "draft_vocab_size": 40, "intermediate_size": None, "vocab_size": None}
    config |= {"norm_before_residual": True, "transformer_layer_config": nested}
    path = write(tmp_path / "a", tensors, "model.safetensors", **config)
    reference = make_reference(
        model, tensors=tensors, at="layers.0.", known=(), normed_residual=True
    )
    compared, wrong = compare(model, path, reference, ROOMY)
    assert compared > 10 and wrong == 0

    tensors = fit(model).copy()
    del tensors["lm_head.weight"]
    own_config = {"use_aux_hidden_state": True, IDS: [2, 0, 1]}
    config = {"draft_vocab_size": None, "eagle_config": own_config}
    path = write(tmp_path / "b", tensors, **config)
    compared, wrong = compare(model, path, make_reference(model, tensors=tensors, known=()), ROOMY)
    assert compared > 10 and wrong == 0


@pytest.mark.parametrize("each", [True, False])
def test_norms_before_fc_and_of_the_output(model: Decoder, tmp_path: Path, each: bool) -> None:
    """EAGLE-3.1, and gpt-oss's layers."""
    rng = np.random.default_rng(6)
    names = {f"fc_norm.{i}": 32 for i in range(3)} if each else {"input_norm": 96}
    norms = {f"{k}.weight": rng.uniform(0.5, 1.5, n).astype(np.float32) for k, n in names.items()}
    tensors = fit(model) | norms
    config = {**TAPPED, "fc_norm": each, "norm_before_fc": not each, "norm_output": each}
    path = write(tmp_path / "h", tensors, offsets=OFFSETS, **config)
    compared, wrong = compare(
        model, path, make_reference(model, tensors=tensors, normed_output=each), ROOMY
    )
    assert compared > 10 and wrong == 0
    plain = write(tmp_path / "p", fit(model), offsets=OFFSETS, **config)
    with pytest.raises(CheckpointError, match=r"no tensor '(fc_norm.0|input_norm).weight'"):
        open_folder(plain, model)


def test_a_wrong_tap_is_caught(model: Decoder, tmp_path: Path) -> None:
    """The reference reads the middle layer twice."""
    path = write(tmp_path / "h", fit(model), offsets=OFFSETS, **TAPPED)
    compared, wrong = compare(model, path, make_reference(model, inputs=(1, 2, 2)), ROOMY)
    assert wrong > compared / 2


def test_a_position_one_too_far_is_caught(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Eagle3Model.compute_states

    def shifted(self: Eagle3Model, batch: Any, states: Any, kv: Any) -> Any:
        late = np.minimum(batch.positions + batch.contexts.max() // 5, 127).astype(np.int32)
        return compute(self, replace(batch, positions=late), states, kv)

    monkeypatch.setattr(Eagle3Model, "compute_states", shifted)
    compared, wrong = compare(model, folder, make_reference(model), ROOMY)
    assert wrong > 0 and compared > 10


def test_a_stale_state_is_caught(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_first = Eagle3Model.make_first

    def stale(self: Eagle3Model, taps: Any) -> Any:
        return np.roll(make_first(self, taps), 1, axis=0)

    monkeypatch.setattr(Eagle3Model, "make_first", stale)
    compared, wrong = compare(model, folder, make_reference(model), ROOMY)
    assert wrong > compared / 2


@pytest.mark.parametrize("limits", [ROOMY, TIGHT, CHUNKED])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_token_changes(folder: Path, backend: str, limits: Any) -> None:
    model = make_model(CpuOps(1, None, "f32") if backend == "cpu" else ReferenceOps("f32"))
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(model), [request])
    engine = make_engine(model, limits, make_drafter(folder, model, limits))
    assert drain(engine, requests) == expected
    found = engine.metrics
    assert found.proposed > found.accepted > 0 and found.drafts > 20
    assert bool(found.preempted) == (limits is TIGHT)
    assert bool(found.cached) == limits.prefix_caching


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({"fc.weight": (32, 64)}, {}, r"fc\.weight.* is \[32, 64\], .* needs \[32, 96\]"),
        ({"midlayer.self_attn.q_proj.weight": (32, 32)}, {}, r"q_proj.* needs \[32, 64\]"),
        ({"midlayer.self_attn.q_norm.weight": (8,)}, {}, "q_norm.* is none of an EAGLE-3 layer's"),
        ({"lm_head.weight": (40, 32)}, {}, r"lm_head.* needs \[30, 32\]"),
        ({}, {"draft_vocab_size": 41}, "'d2t' is"),
        ({"embed_tokens.weight": (30, 32)}, {}, r"embed_tokens.* needs \[40, 32\]"),
        ({}, {"hidden_size": 64}, "hidden_size = 64, this model has 32"),
        ({}, {"vocab_size": 41}, "vocab_size = 41, this model has 40"),
        ({}, {"base_fingerprint": "other"}, "base_fingerprint = 'other'"),
        ({}, {"num_hidden_layers": 2}, "2 layers of 32 elements"),
        ({}, {"draft_vocab_size": 29}, r"'d2t' is \[30\], this model needs \[29\]"),
        ({}, {"parallel_drafting": True}, "parallel_drafting = true is not supported"),
        ({"fc_norm.0.weight": (32,)}, {}, "fc_norm.* is none of an EAGLE-3 layer's"),
        ({}, {IDS: [1, 2, 4]}, r"\[1, 2, 4\].*from 1 to 3 is needed, for 3 layers"),
        ({}, {IDS: None, "eagle_config": {IDS: [0, 1, 3]}}, "from 0 to 2 is needed"),
        ({}, {IDS: [1, 2, 2]}, "names a layer twice"),
        ({}, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = false"),
        ({}, {"transformer_layer_config": 3}, "transformer_layer_config = 3 is no object"),
    ],
)
def test_other_heads_are_refused(
    model: Decoder, tmp_path: Path, change: Any, config: Any, message: str
) -> None:
    tensors = fit(model) | {k: np.zeros(s, np.float32) for k, s in change.items()}
    with pytest.raises(CheckpointError, match=message) as refused:
        open_folder(write(tmp_path / "h", tensors, offsets=OFFSETS, **{**TAPPED, **config}), model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["norm.weight", "midlayer.hidden_norm.weight", "lm_head.weight"])
def test_missing_tensors_are_refused(model: Decoder, tmp_path: Path, name: str) -> None:
    tensors = fit(model).copy()
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"no tensor '{name}'"):
        open_folder(write(tmp_path / "h", tensors, offsets=OFFSETS, **TAPPED), model)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (np.full(KNOWN, 11), r"d2t\[29\] makes token 29 40; allowed: 0 to 39"),
        (np.full(KNOWN, -1), r"d2t\[0\] makes token 0 -1"),
        (np.where(np.arange(KNOWN) == 3, 1, 0), "maps two tokens to the same one"),
    ],
)
def test_maps_out_of_range_are_refused(
    model: Decoder, tmp_path: Path, offsets: Any, message: str
) -> None:
    path = write(tmp_path / "h", fit(model), offsets=offsets, **TAPPED)
    with pytest.raises(CheckpointError, match=message):
        open_folder(path, model)


def test_the_default_layers_are_the_published_ones(model: Decoder, tmp_path: Path) -> None:
    """States go into layers 2, L/2 and L - 3: they are of the layers before."""
    path = write(tmp_path / "h", fit(model), offsets=OFFSETS)
    deep = replace(model.spec, layers=model.spec.layers[:1] * 32)
    source = open_source(SpeculationConfig("eagle3", 3, {"model": str(path)}), DraftBase(deep, ""))
    assert source.layout.taps == (1, 15, 28)
    with pytest.raises(CheckpointError, match="for 3 layers"):
        open_folder(path, model)


def test_a_folder_is_configured_as_in_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model inside: the plan counts what is stored, and the text stays the same."""
    rng = np.random.default_rng(0)
    at, hidden = "midlayer.", 192
    shapes: dict[str, tuple[int, ...]] = {f"{at}self_attn.o_proj": (hidden, hidden)}
    shapes |= {f"{at}self_attn.q_proj": (hidden, 2 * hidden)}
    shapes |= {f"{at}self_attn.{name}_proj": (64, 2 * hidden) for name in "kv"}
    shapes |= {f"{at}mlp.{name}_proj": (96, hidden) for name in ("gate", "up")}
    shapes |= {f"{at}mlp.down_proj": (hidden, 96), "fc": (hidden, 3 * hidden)}
    tensors = {f"{k}.weight": rng.normal(0, 0.05, s).astype(np.float32) for k, s in shapes.items()}
    norms = "input_layernorm", "hidden_norm", "post_attention_layernorm"
    for name in (*(f"{at}{one}" for one in norms), "norm"):
        tensors[f"{name}.weight"] = np.ones(hidden, np.float32)
    sizes = {"hidden_size": hidden, "vocab_size": 2048, "num_attention_heads": 6}
    config = {**TAPPED, **sizes, "intermediate_size": 96, "draft_vocab_size": 2048}
    path = write(tmp_path / "h", tensors, **config)
    given = {"method": "eagle3", "model": str(path), "num_speculative_tokens": 3}
    given["adaptive"] = False
    params = SamplingParams(temperature=0, max_tokens=16)
    plain = LLM(max_model_len=64).generate("Once upon a time", params, use_tqdm=False)
    llm = LLM(max_model_len=64, speculative_config=given)
    found = llm.generate("Once upon a time", params, use_tqdm=False)
    assert found[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert llm.loaded.engine.metrics.proposed > 0 and llm.loaded.memory.draft_kv > 0
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    with pytest.raises(FlyweightError, match="does not exist"):
        LLM(max_model_len=64, speculative_config=given | {"model": "nowhere"})
