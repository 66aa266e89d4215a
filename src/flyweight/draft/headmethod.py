"""Which method draft heads are for: by their tensors, else by their config.

Invariant: where tensors and config leave it open, no method is named.  Knows no files.
Standard library only.
"""

import re
from collections.abc import Mapping
from typing import Any

MEDUSA_BLOCK = re.compile(
    r"(?:medusa_heads?\.)?(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.weight"
)
WHOLE_MODEL = ("model.layers.", "model.decoder.layers.", "transformer.h.")
EAGLE3_LAYER = "midlayer."
QUERY = "self_attn.q_proj.weight"
CONFIG_KEYS = {  # of no other method
    "medusa_num_heads": "medusa", "medusa_num_layers": "medusa",
    "eagle_aux_hidden_state_layer_ids": "eagle3", "draft_vocab_size": "eagle3",
}  # fmt: skip


def find_head_method(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The method of heads with these tensors; `draft_model` of a whole model; "" of others."""
    return _judge_tensors(shapes) or _judge_config(config)


def _judge_tensors(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if any(name.startswith(WHOLE_MODEL) for name in shapes):
        return "draft_model"
    if any(MEDUSA_BLOCK.fullmatch(name) for name in shapes):
        return "medusa"
    if any(name.startswith(EAGLE3_LAYER) for name in shapes):
        return "eagle3"
    joined = shapes.get("fc.weight", ())
    queries = [shape for name, shape in shapes.items() if name.endswith(QUERY)]
    if len(joined) != 2 or not queries or len(queries[0]) != 2:
        return ""
    # EAGLE's layer reads states of the model's width, EAGLE-3's an embedding next to them.
    return {joined[0]: "eagle", 2 * joined[0]: "eagle3"}.get(queries[0][1], "")


def _judge_config(config: Mapping[str, Any]) -> str:
    said = [config.get(key) for key in ("architectures", "model_type", "speculators_model_type")]
    words = str(said).lower()
    named = next((name for name in ("eagle3", "eagle", "medusa") if name in words), "")
    return named or next((of for key, of in CONFIG_KEYS.items() if key in config), "")
