"""Makes ggml_blocks.npz: random blocks and what the `gguf` package dequantises them to.

`python tests/weights/make_fixtures.py OUT_DIR` (tests/data/weights); the result is the same on
every run.
"""

import sys
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

ROWS, COLUMNS = 6, 512
SCALES = {"q8_0": (0,), "q4_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}  # bytes where a float16 lies


def main(out: Path) -> None:
    rng = np.random.default_rng(7)
    arrays = {}
    for kind, places in SCALES.items():
        code = GGMLQuantizationType[kind.upper()]
        block, nbytes = GGML_QUANT_SIZES[code]
        raw = rng.integers(0, 256, (ROWS * COLUMNS // block, nbytes), dtype=np.uint8)
        for at in places:
            scale = rng.standard_normal(len(raw)).astype(np.float16)
            scale[:3] = (0.0, 6e-8, -65504.0)  # zero, the smallest subnormal, the largest
            raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        rows = raw.reshape(ROWS, -1)
        arrays |= {f"{kind}_bytes": rows, f"{kind}_values": dequantize(rows, code)}
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "ggml_blocks.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
