"""Makes the PyTorch checkpoints under tests/data/torch, with torch itself.

    python tests/weights/make_torch_files.py OUT_DIR

`state-*.bin` hold the same tensors in each form torch writes, and state.safetensors what they are.
"""

import sys
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file

FORMS = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "protocol4": {"pickle_protocol": 4},
}


def state() -> OrderedDict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(7, 6, generator=generator)
    return OrderedDict(
        whole=whole,
        again=whole,
        inside=whole[2:5],
        half=torch.randn(3, 4, generator=generator).half(),
        brain=torch.randn(2, 3, 4, generator=generator).bfloat16(),
        parameter=torch.nn.Parameter(torch.randn(5, generator=generator)),
        scalar=torch.tensor(1.5),
        empty=torch.zeros(0, 4),
        mask=torch.ones(2, 2, dtype=torch.bool),
        positions=torch.arange(5),
        transposed=whole.t(),
        columns=whole[:, 2:5],
        column=whole[1:, 3],
    )


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = state()
    for form, options in FORMS.items():
        torch.save(tensors, out / f"state-{form}.bin", **options)
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).reshape(2, 3))
        layer.bias.zero_()
    torch.save(layer.state_dict(), out / "state-module.bin")  # with `_metadata`
    floats = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
    }
    save_file(floats, out / "state.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
