"""The reader of PEFT's LoRA adapters: a folder with adapter_config.json and
adapter_model.safetensors.

Invariant: opening reads headers only; what the arithmetic here does not support (DoRA, biases,
whole modules, other kinds) is refused by name.  Format: huggingface.co/docs/peft.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import read_json, shown
from flyweight.weights.formats.values import to_f32
from flyweight.weights.safetensors import SafetensorsFile, read_safetensors
from flyweight.wire import F32

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
SEEING = re.compile(r"(language_model\.model|model\.language_model)\.")  # Gemma 3 with pictures
PLAIN = re.compile(r"\^?[\w.]+")  # PEFT would take any regular expression, and a name for one
MOST_RANK = 1024
CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")  # they change the model's own weights
UNUSUAL = {  # what we do not compute, and the values that mean it is off
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "modules_to_save": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([],),
    "layer_replication": ([],),
    "alora_invocation_tokens": ([],),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "kasa_config": (),
    "arrow_config": (),
}


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One module's matrices: w + scale * up @ down, [N,r] @ [r,K]; `shape` is [N, K]."""

    module: str
    shape: tuple[int, int]
    rank: int
    scale: float
    file: SafetensorsFile
    names: tuple[str, str]

    def read_down(self) -> F32:
        """float32 [r, K]."""
        return self._read(self.names[0], self.rank)

    def read_up(self) -> F32:
        """float32 [N, r], times the scale."""
        scaled: F32 = self._read(self.names[1], self.shape[0]) * self.scale
        return scaled

    def _read(self, name: str, rows: int) -> F32:
        read: Any = self.file.file.read_rows(name, self.file.spans[name], 0, rows)
        found = to_f32(read)
        if not np.isfinite(found).all():
            raise CheckpointError(
                f"{self.file.file.path}: tensor {shown(name)} holds NaN or infinity; "
                "its training went wrong, take an earlier checkpoint"
            )
        return found


@dataclass(frozen=True, slots=True)
class Adapter:
    """An opened adapter; `pairs` by the module's name in the published model."""

    path: Path
    file: SafetensorsFile
    pairs: Mapping[str, LoraPair]

    def close(self) -> None:
        self.file.file.close()


def open_adapter(path: Path) -> Adapter:
    """Raises `CheckpointError`."""
    if not (path / CONFIG).is_file():
        raise CheckpointError(f"{path}: no {CONFIG}; an adapter is a folder that PEFT saved")
    if not (path / WEIGHTS).is_file():
        pickled = f"; {PICKLE} is a pickle, which can run any code when read: save it again with "
        pickled += "safe_serialization=True"
        raise CheckpointError(f"{path}: no {WEIGHTS}{pickled if (path / PICKLE).is_file() else ''}")
    config = read_json(path / CONFIG)
    _judge(config, path / CONFIG)
    file = read_safetensors(path / WEIGHTS)
    try:
        return Adapter(path, file, _pair_tensors(file, config, path))
    except CheckpointError:
        file.file.close()
        raise


def _judge(config: Mapping[str, Any], where: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise CheckpointError(
            f"{where}: peft_type = {shown(config.get('peft_type'))} is not supported; allowed: LORA"
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGING):
        raise CheckpointError(
            f"{where}: init_lora_weights = {shown(start)} fits weights changed in training; "
            "save it again with path_initial_model_for_weight_conversion"
        )
    for key, off in UNUSUAL.items():
        value = config.get(key)
        if value is not None and value not in off:
            raise CheckpointError(f"{where}: {key} = {shown(value)} is not supported; leave it out")


def _pair_tensors(
    file: SafetensorsFile, config: Mapping[str, Any], path: Path
) -> dict[str, LoraPair]:
    sides: dict[str, dict[str, str]] = {}
    for name in file.spans:
        found = NAME.fullmatch(name)
        if found is None:
            raise CheckpointError(
                f"{path}: tensor {shown(name)} is neither lora_A nor lora_B of a module; "
                "embeddings and whole modules cannot be adapted"
            )
        module = SEEING.sub("model.", found[1], count=1) if SEEING.match(found[1]) else found[1]
        if found[2] in sides.setdefault(module, {}):
            raise CheckpointError(f"{path}: two tensors are lora_{found[2]} of {shown(module)}")
        sides[module][found[2]] = name
    if not sides:
        raise CheckpointError(f"{path / WEIGHTS}: no lora_A and lora_B of any module in it")
    return {
        module: _make_pair(module, names, file, config, path) for module, names in sides.items()
    }


def _make_pair(
    module: str, names: Mapping[str, str], file: SafetensorsFile, config: Mapping[str, Any],
    path: Path,
) -> LoraPair:  # fmt: skip
    if set(names) != {"A", "B"}:
        raise CheckpointError(f"{path}: {shown(module)} has only lora_{next(iter(names))}")
    down, up = (file.spans[names[side]].shape for side in "AB")
    if len(down) != 2 or len(up) != 2 or down[0] != up[1] or not 0 < down[0] <= MOST_RANK:
        raise CheckpointError(
            f"{path}: {shown(module)} has lora_A {list(down)} and lora_B {list(up)}; "
            f"[r, K] and [N, r] with r from 1 to {MOST_RANK} expected"
        )
    said = NAME.fullmatch(names["A"])
    assert said is not None
    scale = _scale(said[1], down[0], config, path)
    return LoraPair(module, (up[0], down[1]), down[0], scale, file, (names["A"], names["B"]))


def _scale(module: str, rank: int, config: Mapping[str, Any], path: Path) -> float:
    """lora_alpha / r, or over its root for rank-stabilised adapters; of a module as its file calls
    it, as patterns do.
    """
    alpha, patterns = config.get("lora_alpha", 8), config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping) or not all(map(PLAIN.fullmatch, patterns)):
        raise CheckpointError(
            f"{path / CONFIG}: alpha_pattern = {shown(patterns)}; names of modules expected"
        )
    for pattern, own in reversed([*patterns.items()]):  # the first that fits counts
        if module == pattern.removeprefix("^") or module.endswith(f".{pattern}"):
            alpha = own
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e9:
        raise CheckpointError(f"{path / CONFIG}: lora_alpha = {shown(alpha)}; a number expected")
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))
