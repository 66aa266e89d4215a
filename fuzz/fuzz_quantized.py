"""Fuzz target: a folder of quantised matrices, joined, its family looked up, and every matrix read.

An input changes an honest folder: the first byte chooses it, the second says where its config is
and counts edits of four bytes (what, where, where within, value), and the rest goes over the
beginning of the tensors' bytes.
"""

import copy
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_safetensors import MODEL

from filewriters import safetensors_bytes
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.weights.formats.joined import METHODS
from flyweight.weights.safetensors import BITS, KINDS
from quantised_folders import DTYPES, GPTQ, K, awq, gptq

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FOLDERS = Path(__file__).parents[1] / "tests" / "data" / "models-quantized"
TEXT = "__metadata__"  # of the header; among what is edited it is in the config
KEPT = ("layers.0.self_attn.k_proj.", "layers.0.block_sparse_moe.experts.0.w1.")  # of each folder
PLACES = (  # of the config, in a file and under a key
    (CONFIG, "quantization_config"), (CONFIG, "compression_config"), ("quantize_config.json", ""),
    ("hf_quant_config.json", "quantization"),
)  # fmt: skip
MXFP4 = {
    "m_blocks": ("U8", [2, 3, 2, 16], bytes(range(192))),
    "m_scales": ("U8", [2, 3, 2], bytes(range(120, 132))),
}
ONE = ("F32", [], np.float32(0.5).tobytes())
MODELOPT = {
    "NVFP4": {
        "m.weight": ("U8", [3, 32], bytes(range(96))),
        "m.weight_scale": ("F8_E4M3", [3, 4], bytes(range(0x30, 0x3C))),
        "m.weight_scale_2": ONE,
        "m.input_scale": ONE,
    },
    "FP8": {"m.weight": ("F8_E4M3", [3, 32], bytes(range(96))), "m.weight_scale": ONE},
}
SHARED = ("joined", "claims", "compressed_rows")
WILD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 1 << 40, 0.5, "", "x", "group",
    "channel", "tensor", "block", "int", "float", "auto_round:auto_awq", "gptq", "awq", [], {},
    [1, 1], [128, 128], [0, 0], {"a": 1}, "nf4", "e4m3",
)  # fmt: skip
SIZES = (0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 31, 33, 63, 65, 96, 255)
DTYPE_NAMES = tuple(KINDS)
ENDS = (".weight", ".scales", ".g_idx", ".x", ".qweight")
FILLS = (0, 1, 8, 0x7F, 0x80, 0xFF, 0x77, 0x88)
EDITS, MOST_DATA = 8, 1 << 16
Folder = tuple[dict[str, Any], dict[str, tuple[str, list[int], bytes]]]  # config, tensors


class Target:
    COVERED = (
        "weights/quantised.py",
        *(f"weights/formats/{name}.py" for name in sorted({*METHODS.values(), *SHARED})),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in set(METHODS.values()):  # now, for atheris to see what they do
            import_module(f"flyweight.weights.formats.{name}")
        self.honest = [read_folder(path) for path in sorted(FOLDERS.iterdir())]
        self.honest += [make_gptq(*one) for one in ((8, 32), (4, 16), (3, 64), (2, 32))]
        self.honest.append(({"quant_method": "mxfp4"}, MXFP4))
        for kind, tensors in MODELOPT.items():
            self.honest.append(({"quant_method": "modelopt", "quant_algo": kind}, tensors))
        self.honest += make_modules()
        for config, _ in self.honest:
            for key in ("dynamic", "sparsity_config", "transform_config"):
                config.setdefault(key)
        hqq = read_folder(FOLDERS / "hqq-4")[1]
        self.honest.append(({}, hqq))  # which needs no config

    def seeds(self) -> Iterator[bytes]:
        for i, (config, _) in enumerate(self.honest):
            places = range(len(PLACES) if config else 1)
            yield from (bytes([i, place << 6]) for place in places)

    def execute(self, data: bytes) -> bool:
        """Whether the folder is joined and every matrix read."""
        count = data[1] % EDITS if len(data) > 1 else EDITS
        if len(data) < 2 + 4 * count:
            return False
        config, tensors = copy.deepcopy(self.honest[data[0] % len(self.honest)])
        for i in range(2, 2 + 4 * count, 4):
            edit(config, tensors, *data[i : i + 4])
        header, held = lay_out(tensors)
        if len(held) > MOST_DATA:
            return False
        text = config.pop(TEXT, {})
        pairs = text.items() if isinstance(text, dict) else ()
        header[TEXT] = {key: json.dumps(value) for key, value in pairs}
        over = data[2 + 4 * count :][: len(held)]
        file, key = PLACES[data[1] >> 6]
        whole = MODEL | {key: config} if file == CONFIG else {key: config} if key else config
        (self.folder / CONFIG).write_text(json.dumps(MODEL))
        (self.folder / file).write_text(json.dumps(whole))
        (self.folder / WEIGHTS).write_bytes(safetensors_bytes(header, over + held[len(over) :]))
        try:
            return read(self.folder)
        finally:
            (self.folder / CONFIG).unlink()
            (self.folder / file).unlink(missing_ok=True)
            (self.folder / WEIGHTS).unlink()


def read_folder(path: Path) -> Folder:
    """The config of a committed folder and the tensors of one matrix."""
    config = json.loads((path / CONFIG).read_text())["quantization_config"]
    raw = (path / WEIGHTS).read_bytes()
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data])
    text = header.pop(TEXT, {})
    config[TEXT] = {k: json.loads(v) for k, v in text.items() if any(part in k for part in KEPT)}
    found = {}
    for name, entry in header.items():
        if any(part in name for part in KEPT):
            begin, end = entry["data_offsets"]
            found[name] = (entry["dtype"], entry["shape"], raw[data + begin : data + end])
    return config, found


def make_gptq(bits: int, group: int) -> Folder:
    arrays = gptq(bits, group, np.arange(K) // group)
    tensors = {n: (DTYPES[a.dtype.str[1:]], [*a.shape], a.tobytes()) for n, a in arrays.items()}
    return GPTQ | {"bits": bits, "group_size": group}, tensors


def make_modules() -> list[Folder]:
    """Folders whose config has modules of other bits, and one of AutoRound in AWQ's layout."""
    config, tensors = make_gptq(4, 32)
    others = {"+:o": {"bits": 8, "group_size": -1, "sym": None}, "-:p": {}}
    rounded = {**config, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
    packed = {n: (DTYPES[a.dtype.str[1:]], [*a.shape], a.tobytes()) for n, a in awq().items()}
    return [
        (config | {"dynamic": others}, tensors),
        (rounded | {"extra_config": {"o": {"bits": 8}, "p": {"bits": 16}}}, tensors),
        (rounded | {"packing_format": "auto_round:auto_awq"}, packed),
    ]


def edit(
    config: Any, tensors: dict[str, Any], what: int, where: int, axis: int, value: int
) -> None:
    """One change of the config, or of a tensor's dtype, shape, name or bytes."""
    if what % 4 == 0 or not tensors:
        places = list_places(config) or [(config, "quant_method")]
        holder, key = places[where % len(places)]
        holder[key] = copy.deepcopy(WILD[value % len(WILD)])
        return
    name = [*tensors][where % len(tensors)]
    dtype, shape, raw = tensors.pop(name)
    if what % 16 == 1:
        return
    if what % 16 == 5:
        name = name.rpartition(".")[0] + ENDS[value % len(ENDS)]
    elif what % 16 == 9:
        dtype = DTYPE_NAMES[value % len(DTYPE_NAMES)]
    elif what % 4 == 2 and shape:
        shape[axis % len(shape)] = SIZES[value % len(SIZES)]
    elif what % 4 == 3:
        at = axis * len(raw) // 256
        raw = raw[:at] + bytes([FILLS[value % len(FILLS)]]) * (len(raw) - at)
    tensors[name] = dtype, shape, raw


def list_places(config: Any) -> list[tuple[Any, Any]]:
    """Every key of the config and of what is in it, with its holder."""
    found = []
    for key, value in config.items():
        found.append((config, key))
        if isinstance(value, dict):
            found += list_places(value)
    return found


def lay_out(tensors: dict[str, tuple[str, list[int], bytes]]) -> tuple[dict[str, Any], bytes]:
    """A header that tiles its data, whatever the shapes."""
    header, held = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        size = math.prod(shape) * BITS[KINDS[dtype]] // 8
        if size > MOST_DATA or len(held) > MOST_DATA:
            return {}, bytes(MOST_DATA + 1)
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(held), len(held) + size],
        }
        held += (raw * (size // max(1, len(raw)) + 1) + bytes(size))[:size]
    return header, held


def read(path: Path) -> bool:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return False
    try:
        for name, info in checkpoint.tensors.items():
            if info.kind not in FORMATS:
                continue
            shape = info.shape or (1,)
            count = math.prod(shape[:-1]) if len(shape) > 1 else shape[0]
            for start, stop in ((0, count // 3), (count // 3, count)):
                rows = checkpoint.read(name, start, stop)
                if isinstance(rows, GroupedWeight):
                    assert rows.kind == info.kind, (rows.kind, info.kind)
                    assert rows.shape == (stop - start, shape[-1])
        find_family(checkpoint.config).read_spec(checkpoint.config)
        return True
    except CheckpointError:  # values that are none, or a method without a family
        return False
    finally:
        checkpoint.close()
