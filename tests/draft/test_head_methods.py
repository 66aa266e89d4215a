"""Heads of another method are refused with their own, as is a draft model that is heads."""

import json
from pathlib import Path
from typing import Any

import eagle3_heads
import numpy as np
import pytest
import test_eagle
import test_medusa
from small_engine import make_model

from flyweight import build as building
from flyweight.config import Settings
from flyweight.describe import ASSETS, SilentListener, describe, find
from flyweight.draft.headfolder import find_heads, read_head_method
from flyweight.draft.headmethod import find_head_method
from flyweight.draft.methods import DraftBase, open_source
from flyweight.errors import CheckpointError, ConfigError
from flyweight.models.decoder import Decoder
from flyweight.ops.reference import ReferenceOps
from flyweight.pairing import find_draft
from flyweight.speculation import read_speculation
from tiny_model import tiny_folder

METHODS = ("medusa", "eagle", "eagle3")


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(ReferenceOps("f32"))


@pytest.fixture(scope="module")
def folders(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads of every method, whose configs name none."""
    at = tmp_path_factory.mktemp("heads")
    block = {"blocks.0.layers.0.weight": np.zeros((32, 32), np.float32)}
    made = {
        "medusa": test_medusa.write(at / "medusa", block, "model.safetensors"),
        "eagle": test_eagle.write(at / "eagle", test_eagle.make_tensors()),
        "eagle3": eagle3_heads.write(at / "eagle3", eagle3_heads.make_tensors(model)),
    }
    for path in made.values():
        config = json.loads((path / "config.json").read_text())
        for key in ("architectures", "model_type", "draft_vocab_size"):
            config.pop(key, None)
        (path / "config.json").write_text(json.dumps(config))
    return made


def refuse(method: str | None, model: object, **more: Any) -> str:
    """What is said of heads for the model inside, before a weight is read."""
    given = {"model": str(model), "num_speculative_tokens": 1, **more}
    config = given | ({"method": method} if method else {})
    with pytest.raises((ConfigError, CheckpointError)) as refused:
        building.build(Settings.of(model="stories", offline=True, speculative_config=config))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("given", METHODS)
@pytest.mark.parametrize("held", METHODS)
def test_another_method_is_refused_with_that_of_the_heads(
    model: Decoder, folders: dict[str, Path], given: str, held: str
) -> None:
    path = folders[held]
    assert read_head_method(path) == held
    config = read_speculation({"method": given, "model": str(path), "num_speculative_tokens": 1})
    assert config is not None
    if given == held and held != "eagle3":  # its folder here knows a part of the vocabulary
        open_source(config, DraftBase(model.spec, "base"))
        return
    with pytest.raises((ConfigError, CheckpointError)) as refused:
        open_source(config, DraftBase(model.spec, "base"))
    wrong = f"speculative_config.method = '{given}' does not fit {path}, which holds heads for "
    assert (wrong in str(refused.value)) == (given != held)
    assert (f'nearest valid: "method": "{held}"' in str(refused.value)) == (given != held)


@pytest.mark.parametrize("held", METHODS)
def test_a_folder_of_heads_without_a_method_is_refused_with_it(
    folders: dict[str, Path], held: str
) -> None:
    said = refuse(None, folders[held])
    assert f"= '{folders[held]}' has heads for method {held}, and is no draft model" in said
    assert said.endswith(f'nearest valid: "method": "{held}"')


def test_a_whole_model_is_no_heads(tmp_path: Path) -> None:
    said = refuse("eagle", tiny_folder(tmp_path / "model"))
    assert "which holds a whole model" in said and '"method": "draft_model"' in said


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["EagleModel"]}, "eagle"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"medusa_num_heads": 3, "model_type": "llama"}, "medusa"),
        ({"draft_vocab_size": 9}, "eagle3"),
        ({"architectures": ["LlamaForCausalLM"]}, ""),
        ({"architectures": None, "model_type": 3}, ""),
    ],
)
def test_a_config_names_the_method_where_tensors_do_not(
    config: dict[str, Any], method: str
) -> None:
    assert find_head_method(config, {}) == method
    shapes = {"0.0.linear.weight": (32, 32)}
    assert find_head_method(config, shapes) == "medusa"


def test_names_of_the_package_are_listed() -> None:
    inside = "stories-medusa, stories-eagle, stories-eagle3; with method draft_model stories-draft"
    for name in ("no-such-heads", "stories-draf"):
        with pytest.raises(ConfigError, match=inside) as refused:
            find_heads(name)
    assert "did you mean 'stories-draft'?" in str(refused.value)
    for name in ("stories-draft", str(ASSETS / "stories-draft.gguf")):
        with pytest.raises(ConfigError, match='nearest valid: "method": "draft_model"'):
            find_heads(name)
    said = refuse("draft_model", "no-such-model")
    assert "stories-draft, a .gguf file" in said and "heads: stories-medusa, stories-eag" in said
    said = refuse("draft_model", "stories-eagle")
    assert "'stories-eagle' has heads for method eagle" in said


def test_heads_of_another_base_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """Those inside are for one file: a copy of it in another format has another fingerprint."""
    target = describe(find(Settings.of(model="stories-draft")))
    base = DraftBase(target.spec, target.checkpoint.fingerprint, checkpoint=target.checkpoint)
    path = tmp_path / "heads"
    config = {"base_model": "stories", "base_fingerprint": "0" * 32}
    none = np.zeros((target.spec.hidden, target.spec.hidden), np.float32)
    test_medusa.write(path, {"blocks.0.layers.0.weight": none}, "model.safetensors", **config)
    drafts = read_speculation({"method": "medusa", "model": str(path), "num_speculative_tokens": 1})
    assert drafts is not None
    with pytest.raises(CheckpointError) as refused:
        open_source(drafts, base)
    said = str(refused.value)
    for words in (
        "trained for 'stories', base_fingerprint = '000", "this model 'stories-draft.gguf' has",
        target.checkpoint.fingerprint, "`flyweight train-heads`",
        "a quantised copy of that base, remove base_fingerprint from config.json",
    ):  # fmt: skip
        assert words in said
    (path / "config.json").write_text(json.dumps({"base_model": "stories"}))
    assert open_source(drafts, base) is not None


def test_a_draft_model_is_still_found() -> None:
    settings = Settings.of(
        model="stories",
        speculative_config={"model": "stories-draft", "num_speculative_tokens": 2},
    )
    assert find_draft(settings, describe(find(settings)), SilentListener()) is not None
