"""The model inside with a chat template in its file, for tests that converse."""

from pathlib import Path
from struct import pack, unpack_from

from flyweight.describe import ASSETS

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant> Once{% endif %}"
)
KEY = b"tokenizer.chat_template"
HEAD = 24  # bytes of a GGUF file before its first key
ALIGNMENT = 32  # of its tensors
STRING = 8
CONTEXT = b"llama.context_length" + pack("<I", 4)  # its name, and the type of its value


def write(path: Path, template: str = TEMPLATE, context: int = 512) -> Path:
    """Puts the key first; a comment fills it up so that every tensor stays aligned.  A context
    above 512 tokens is beyond what the model has learned.
    """
    raw = (ASSETS / "stories.gguf").read_bytes()
    end = raw.index(CONTEXT) + len(CONTEXT)
    raw = raw[:end] + pack("<I", context) + raw[end + 4 :]
    size = 8 + len(KEY) + 4 + 8 + len(template.encode())
    filled = template + "{#" + " " * (-(size + 4) % ALIGNMENT) + "#}"
    text = filled.encode()
    key = pack("<Q", len(KEY)) + KEY + pack("<IQ", STRING, len(text)) + text
    (keys,) = unpack_from("<Q", raw, 16)
    path.write_bytes(raw[:16] + pack("<Q", keys + 1) + key + raw[HEAD:])
    return path
