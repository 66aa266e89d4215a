"""Writes folders by `flyweight quantize`, with what our reader makes of them, for
`read_by_libraries.py`:

    PYTHONPATH=src:tests:tests/quantize python tests/quantize/write_for_libraries.py OUT

OUT/full is the model, OUT/NAME a quantised folder with expected.npz: every matrix in layers as
float32, by slot.
"""

import sys
from pathlib import Path

import numpy as np
from jobs import make_words, prepare, run_job

from flyweight.describe import describe
from flyweight.weights.load import read_matrix
from tiny_model import CONFIG, tiny_folder, tiny_tensors

WIDER = {"hidden_size": 64, "intermediate_size": 128}
MIXED = "0=int8,1=int4,lm_head=fp32"
WAYS = {
    "gptq-2-asym": {"method": "gptq", "bits": 2, "symmetric": False},
    "gptq-3": {"method": "gptq", "bits": 3},
    "gptq-4": {"method": "gptq"},
    "gptq-4-asym": {"method": "gptq", "symmetric": False},
    "gptq-4-order": {"method": "gptq", "act_order": True},
    "gptq-8": {"method": "gptq", "bits": 8},
    "awq": {"method": "awq"},
    "ct-4": {"method": "gptq", "format": "compressed-tensors"},
    "ct-4-asym": {"method": "awq", "format": "compressed-tensors"},
    "ct-8": {"method": "rtn", "format": "compressed-tensors", "bits": 8},
    "ct-mixed": {"method": "rtn", "format": "compressed-tensors", "layer_precision": MIXED},
    "ct-int8": {"method": "int8-dynamic", "group_size": -1},
    "ct-int8-static": {"method": "int8-static", "group_size": -1},
    "ct-smooth": {"method": "smoothquant", "group_size": -1},
    "nf4": {"method": "nf4", "group_size": 64},
    "hqq-2": {"method": "hqq", "bits": 2, "group_size": 64},
    "hqq-3": {"method": "hqq", "bits": 3, "group_size": 64},
    "hqq-4": {"method": "hqq", "group_size": 64},
    "hqq-8": {"method": "hqq", "bits": 8, "group_size": 64},
}


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True)
    full = tiny_folder(root / "full", WIDER, tiny_tensors({**CONFIG, **WIDER}))
    words = make_words()
    for name, options in WAYS.items():
        out = run_job(prepare(full, words, **options), root / name)
        found = describe(out)
        slots = [s for s in found.plan.slots if s.kind == "linear" and s.name.startswith("layers")]
        np.savez(out / "expected.npz", **{s.name: read_matrix(found.checkpoint, s) for s in slots})
        found.checkpoint.close()


if __name__ == "__main__":
    main()
