"""Makes LoRA adapters of the tiny checkpoints with PEFT, and what transformers says of both.

    python tests/model/make_adapters.py OUT_DIR [NAME ...]

Needs peft, torch and transformers.  Under OUT_DIR/NAME lie the adapters' folders, as PEFT saves
them, and expected.npz: the prompt, and the logits with each adapter.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from make_fixtures import ROWS, build
from peft import LoraConfig, get_peft_model

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, dict[str, dict]] = {
    "llama3": {
        "everything": dict(r=4, lora_alpha=8, target_modules=LLAMA),
        "queries": dict(r=8, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_rslora=True),
        "own-alpha": dict(
            r=2, lora_alpha=2, target_modules=["k_proj", "down_proj"],
            alpha_pattern={"down_proj": 6}, rank_pattern={"down_proj": 3},
        ),
    },
    "phi3": {"fused": dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj"])},
    "gpt-neox": {
        "fused": dict(r=4, lora_alpha=8, target_modules=["query_key_value", "dense_4h_to_h"])
    },
    "gpt2": {
        "turned": dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    },
    "deepseek-v2": {
        "latent": dict(r=4, lora_alpha=8, target_modules=["q_b_proj", "kv_a_proj_with_mqa"])
    },
}  # fmt: skip


def adapted(name: str, adapter: str) -> torch.nn.Module:
    """The checkpoint with one random adapter."""
    model = get_peft_model(build(name), LoraConfig(**ADAPTERS[name][adapter]))
    rng = np.random.default_rng(sum(map(ord, name + adapter)))
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "lora_" in key:
                x = rng.standard_normal(tuple(tensor.shape)).astype(np.float32)
                tensor.copy_(torch.from_numpy(x / np.sqrt(tensor.shape[-1])))
    return model.eval()


def settle(folder: Path) -> None:
    """PEFT writes a set of modules in no order; and a card nobody needs here."""
    (folder / "README.md").unlink()
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text())
    config["target_modules"].sort()
    file.write_text(json.dumps(config, indent=2) + "\n")


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or ADAPTERS:
        rng = np.random.default_rng(11)
        prompt = rng.integers(3, 320, 200).astype(np.int32)
        rows = np.array(ROWS, np.int32)
        found = {"prompt": prompt, "rows": rows}
        for adapter in ADAPTERS[name]:
            model = adapted(name, adapter)
            model.save_pretrained(out / name / adapter)
            settle(out / name / adapter)
            with torch.no_grad():
                logits = model(torch.from_numpy(prompt)[None].long()).logits[0]
            found[f"logits {adapter}"] = logits[list(ROWS)].numpy()
        np.savez_compressed(out / name / "expected.npz", **found)
        print(name, sorted(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
