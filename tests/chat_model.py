"""The model inside with a chat template in its file, for tests that converse."""

from pathlib import Path
from struct import pack, unpack_from

from flyweight.build import ASSETS

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant> Once{% endif %}"
)
KEY = b"tokenizer.chat_template"
HEAD = 24  # bytes of a GGUF file before its first key
ALIGNMENT = 32  # of its tensors
STRING = 8


def write(path: Path, template: str = TEMPLATE) -> Path:
    """Puts the key first; a comment fills it up so that every tensor stays aligned."""
    raw = (ASSETS / "stories.gguf").read_bytes()
    size = 8 + len(KEY) + 4 + 8 + len(template.encode())
    filled = template + "{#" + " " * (-(size + 4) % ALIGNMENT) + "#}"
    text = filled.encode()
    key = pack("<Q", len(KEY)) + KEY + pack("<IQ", STRING, len(text)) + text
    (keys,) = unpack_from("<Q", raw, 16)
    path.write_bytes(raw[:16] + pack("<Q", keys + 1) + key + raw[HEAD:])
    return path
