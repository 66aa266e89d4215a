"""A model folder's vocabulary as GGUF says it: `tokenizer.ggml.*` and the chat template.

Invariant: our own reader of that metadata makes the same ids of a probe text as the folder's
tokenizer, or the vocabulary is refused.  Kinds: byte-level BPE ("gpt2"), whose way of cutting words
is found by that comparison, and BPE of SentencePiece ("llama").
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError, ConfigError
from flyweight.text.companions import lay_over
from flyweight.text.gguf import TokenType
from flyweight.text.pretokenizers import PRE_TOKENIZERS
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.text.vocabulary_files import read_merges, read_sentencepiece
from flyweight.validation.untrusted import read_json

PROBE = (
    "Hello world, it's 3 o'clock; they'LL pay $12,345.67 (or 89\u20ac)!\n\n\tdef f(x):  return x**2"
    "   # t\u00eat\u00e9 \u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \u3053\u3093 "
    "\U0001f600 e\u0301\r\n    1 22 333 4444 55555 a_b-c/d\\e   \n \n  END we've I'm"
)
FIRST = ("llama-bpe", "qwen2", "gpt-2", "default")  # families tried before others
BYTES = 256
PREFIX = "tokenizer.ggml."


def make_vocabulary(folder: Path, tokenizer: Tokenizer, size: int) -> dict[str, object]:
    """The metadata of a folder's tokenizer, for a model of `size` tokens.  Raises `ConfigError` for
    a kind that is not written.
    """
    found = next((one for one in _list_candidates(folder) if _reads_alike(one, tokenizer)), None)
    if found is None:
        raise ConfigError(
            "cannot hold this model's vocabulary: no kind of GGUF cuts text as it does",
            "format",
            value="gguf",
        )
    _pad(found, size)
    return found | _list_marks(tokenizer)


def _list_candidates(folder: Path) -> Iterator[dict[str, object]]:
    """Metadata that may be the folder's."""
    if (folder / "tokenizer.json").is_file():
        document = read_json(folder / "tokenizer.json")
        model = document.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            kind = model.get("type") if isinstance(model, dict) else None
            raise ConfigError(f"cannot hold a vocabulary of type {kind}", "format", value="gguf")
        if model.get("byte_fallback"):
            yield _read_pieces(document)
            return
        tokens = _read_byte_level(document)
        seen = set()
        for name in (*FIRST, *PRE_TOKENIZERS):
            if PRE_TOKENIZERS[name] not in seen:
                seen.add(PRE_TOKENIZERS[name])
                yield {**tokens, f"{PREFIX}pre": name}
    elif (folder / "tokenizer.model").is_file():
        yield lay_over(read_sentencepiece(folder / "tokenizer.model"), folder)
    elif (folder / "merges.txt").is_file():
        yield lay_over(read_merges(folder), folder)


def _reads_alike(metadata: Mapping[str, object], tokenizer: Tokenizer) -> bool:
    try:
        ours = load_tokenizer(metadata)
        return ours.encode(PROBE, add_special=False) == tokenizer.encode(PROBE, add_special=False)
    except CheckpointError:
        return False


def _list_tokens(document: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Pieces and types by id."""
    held: dict[str, int] = document["model"]["vocab"]
    added = {entry["id"]: entry for entry in document.get("added_tokens", ())}
    count = max([*held.values(), *added], default=-1) + 1
    tokens = [f"[UNUSED{i}]" for i in range(count)]
    types = [int(TokenType.UNUSED)] * count
    for piece, i in held.items():
        tokens[i], types[i] = piece, int(TokenType.NORMAL)
    for i, entry in added.items():
        special = entry.get("special")
        tokens[i] = entry["content"]
        types[i] = int(TokenType.CONTROL if special else TokenType.USER_DEFINED)
    return tokens, types


def _list_merges(document: Mapping[str, Any]) -> list[str]:
    merges = document["model"].get("merges", ())
    return [one if isinstance(one, str) else " ".join(one) for one in merges]


def _read_byte_level(document: Mapping[str, Any]) -> dict[str, object]:
    tokens, types = _list_tokens(document)
    return {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}token_type": np.array(types, np.int32),
        f"{PREFIX}merges": _list_merges(document),
    }


def _read_pieces(document: Mapping[str, Any]) -> dict[str, object]:
    """SentencePiece's BPE: a piece's score is the negative place of the merge that makes it."""
    tokens, types = _list_tokens(document)
    ranks: dict[str, int] = {}
    for i, merge in enumerate(_list_merges(document)):
        ranks.setdefault(merge.replace(" ", "", 1), i)
    scores = [-float(ranks.get(piece, len(ranks))) for piece in tokens]
    for byte in range(BYTES):
        piece = f"<0x{byte:02X}>"
        if piece in document["model"]["vocab"]:
            types[document["model"]["vocab"][piece]] = int(TokenType.BYTE)
    unknown = document["model"].get("unk_token")
    found: dict[str, object] = {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}scores": np.array(scores, np.float32),
        f"{PREFIX}token_type": np.array(types, np.int32),
    }
    if unknown in document["model"]["vocab"]:
        place = document["model"]["vocab"][unknown]
        types[place] = int(TokenType.UNKNOWN)
        found[f"{PREFIX}token_type"] = np.array(types, np.int32)
        found[f"{PREFIX}unknown_token_id"] = np.uint32(place)
    return found


def _pad(found: dict[str, object], size: int) -> None:
    """Unused tokens up to the rows of the embedding."""
    tokens: Any = found[f"{PREFIX}tokens"]
    missing = size - len(tokens)
    if missing <= 0:
        return
    found[f"{PREFIX}tokens"] = [*tokens, *(f"[PAD{i}]" for i in range(len(tokens), size))]
    types: Any = found[f"{PREFIX}token_type"]
    unused = np.full(missing, int(TokenType.UNUSED), np.int32)
    found[f"{PREFIX}token_type"] = np.concatenate([np.asarray(types, np.int32), unused])
    if f"{PREFIX}scores" in found:
        scores: Any = found[f"{PREFIX}scores"]
        low = np.full(missing, -1e4, np.float32)
        found[f"{PREFIX}scores"] = np.concatenate([np.asarray(scores, np.float32), low])


def _list_marks(tokenizer: Tokenizer) -> dict[str, object]:
    """Special ids, whether BOS is added, and the template."""
    found: dict[str, object] = {f"{PREFIX}add_bos_token": np.bool_(tokenizer.add_bos)}
    for name, token in (("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id)):
        if token is not None:
            found[f"{PREFIX}{name}_token_id"] = np.uint32(token)
    if tokenizer.chat_template:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    return found
