"""The name of a quantised model where none is given: the model's, and what was made of it.

Invariant: a name that ends in `.gguf` is a file's, any other a folder's.  Knows no disk but the
input's.
"""

import re
from pathlib import Path

from flyweight.describe import DEFAULT_MODEL
from flyweight.quantize.options import QuantizeOptions

ENDINGS = re.compile(r"[-._](f32|f16|fp32|fp16|bf16|gguf)$", re.IGNORECASE)  # said of the input
UNITS = {
    "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "kB": 10**3, "KiB": 2**10,
}  # fmt: skip


def name_output(model: str | None, options: QuantizeOptions) -> str:
    """Such as Qwen3-0.6B-Q4_K_M.gguf, Qwen3-0.6B-gptq-Q4_0.gguf, Qwen3-0.6B-2GB.gguf or
    Qwen3-0.6B-gptq-4bit.
    """
    name = name_model(model)
    if options.container != "gguf":
        return f"{name}-{options.method}-{options.precision.bits}bit"
    if options.target_size is not None:
        return f"{name}-{spell_size(options.target_size)}.gguf"
    if options.max_kld is not None:
        return f"{name}-kld{options.max_kld:g}.gguf"
    made = "" if options.method == "rtn" else f"{options.method}-"
    return f"{name}-{made}{'layers' if options.layer_precision else options.recipe}.gguf"


def name_model(model: str | None) -> str:
    """Of a folder, a file or a name on the Hub, without what says that it holds floats."""
    given = model or DEFAULT_MODEL
    path = Path(given).expanduser()
    if path.is_dir():
        return path.resolve().name
    name = path.stem if path.exists() else re.split("[:@]", given)[0].rpartition("/")[2]
    return ENDINGS.sub("", name)


def spell_size(size: int) -> str:
    """2GB, 2.2GB or 400MiB: the shortest that is exact."""
    for unit, scale in UNITS.items():
        if size >= scale and round(size / scale, 3) * scale == size:
            return f"{size / scale:.3f}".rstrip("0").rstrip(".") + unit
    return f"{size}B"
