"""Vocabularies in the files slow tokenizers read, as GGUF metadata: vocab.json with merges.txt
(byte-level BPE), and vocab.txt (WordPiece).

vocab.json says nothing of how a text is cut; the class or the model type beside it does.
"""

from pathlib import Path

from flyweight.errors import CheckpointError, nearest
from flyweight.text.alphabet import SPACE
from flyweight.text.gguf import MOST_TOKENS, TokenType
from flyweight.text.ranks import Metadata
from flyweight.validation.untrusted import read_bytes, read_json, shown

GOES_ON = "##"
# Who cuts how: tokenizer classes and model types, by pre-tokenizer.
CUTS = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "RobertaTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
    "gpt2": "gpt-2",
    "phi": "gpt-2",
    "roberta": "gpt-2",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "llama": "llama-bpe",
}
BERT = {"[CLS]": "bos", "[SEP]": "seperator", "[UNK]": "unknown", "[PAD]": "padding", "[MASK]": ""}


def read_merges(directory: Path) -> Metadata:
    """vocab.json and merges.txt."""
    path = directory / "vocab.json"
    ids = read_json(path)
    if not all(isinstance(i, int) and 0 <= i < MOST_TOKENS for i in ids.values()) or not ids:
        raise CheckpointError(f"{path}: not an object of token ids")
    tokens = [""] * (1 + max(ids.values()))
    types = [TokenType.UNUSED.value] * len(tokens)
    for piece, token in ids.items():
        tokens[token], types[token] = piece, TokenType.NORMAL.value
    lines = _read_lines(directory / "merges.txt")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _cut(directory),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m for m in lines if m and not m.startswith("#version")],
    }


def _cut(directory: Path) -> str:
    words = []
    for name, key in (("tokenizer_config.json", "tokenizer_class"), ("config.json", "model_type")):
        path = directory / name
        found = read_json(path).get(key) if path.exists() else None
        if isinstance(found, str):
            words.append(found.removesuffix("Fast"))
    pre = next((CUTS[word] for word in words if word in CUTS), None)
    if pre is None:
        hint = nearest(words[0], CUTS) if words else ""
        said = ", ".join(map(shown, words)) or "nothing"
        raise CheckpointError(
            f"{directory}: vocab.json and merges.txt, and {said} to say how texts are cut{hint}; "
            f"known tokenizer_class or model_type: {', '.join(CUTS)}"
        )
    return pre


def read_words(path: Path) -> Metadata:
    """vocab.txt: a piece a line, ## before what goes on a word."""
    pieces = _read_lines(path)
    pieces = pieces[:-1] if pieces and not pieces[-1] else pieces
    found: Metadata = {"tokenizer.ggml.model": "bert"}
    types = [TokenType.NORMAL.value] * len(pieces)
    tokens = []
    for i, piece in enumerate(pieces):
        marked = piece in BERT
        if marked:
            types[i] = TokenType.CONTROL.value
            if BERT[piece]:
                found[f"tokenizer.ggml.{BERT[piece]}_token_id"] = i
        goes_on = piece.startswith(GOES_ON) and len(piece) > len(GOES_ON)
        tokens.append(piece if marked else piece[2:] if goes_on else SPACE + piece)
    if "tokenizer.ggml.unknown_token_id" not in found:
        raise CheckpointError(f"{path}: no [UNK] among its lines; a WordPiece vocabulary has one")
    return found | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def _read_lines(path: Path) -> list[str]:
    try:
        return [line.removesuffix("\r") for line in read_bytes(path).decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: byte {error.start} is not UTF-8") from None
