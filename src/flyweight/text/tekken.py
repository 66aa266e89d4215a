"""Mistral's tekken.json: a pattern, special tokens, and the bytes of every piece by rank.

Special tokens come first; the piece of rank r has the id r plus their number.  Files from before
special tokens were listed have those of Mistral's first ones.
"""

from base64 import b64decode
from pathlib import Path
from typing import Any

from tokenizers import Regex

from flyweight.errors import CheckpointError
from flyweight.text.alphabet import encode_bytes
from flyweight.text.library import catch_faults
from flyweight.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from flyweight.text.ranks import Metadata, make_metadata
from flyweight.validation.untrusted import read_json, shown

BOS, EOS = "<s>", "</s>"
UNLISTED = (  # special tokens of files that list none
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip


def read_tekken(path: Path) -> tuple[Metadata, PreTokenizer]:
    """The file's vocabulary as `tokenizer.ggml.*`, and how its texts are cut."""
    content = read_json(path)
    try:
        return _read(content, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a readable tekken.json ({error!r:.80})") from None


def _read(content: dict[str, Any], path: Path) -> tuple[Metadata, PreTokenizer]:
    config = content["config"]
    first, size = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
    listed = content.get("special_tokens")
    names = {str(e["token_str"]): int(e["rank"]) for e in listed} if listed else {}
    if not names:
        names = {name: i for i, name in enumerate(UNLISTED[:first])}
    taken = set(names.values())
    names |= {f"<SPECIAL_{i}>": i for i in range(first) if i not in taken}
    if first < 0 or not all(0 <= i < first for i in names.values()):
        raise CheckpointError(f"{path}: a special token is outside 0 to {first - 1}")
    pieces = {
        first + int(entry["rank"]): encode_bytes(b64decode(entry["token_bytes"], validate=True))
        for entry in content["vocab"]
        if int(entry["rank"]) < size - first
    }
    metadata = make_metadata(pieces, names, str(path))
    metadata["tokenizer.ggml.add_bos_token"] = True
    for key, name in (("bos", BOS), ("eos", EOS), ("unknown", "<unk>"), ("padding", "<pad>")):
        if name in names:
            metadata[f"tokenizer.ggml.{key}_token_id"] = names[name]
    pattern = str(config["pattern"])
    with catch_faults(
        lambda reason: CheckpointError(f"{path}: pattern {shown(pattern)}: {reason}")
    ):
        Regex(pattern)
    known = PRE_TOKENIZERS["tekken"]
    own = PreTokenizer((pattern,), ignore_merges=True, add_bos=True)
    return metadata, known if known.patterns == own.patterns else own
