"""Vocabularies of ranks: tiktoken's files, and Mistral's tekken.json, which also holds a pattern
and special tokens.

A piece is a string of bytes; of two neighbours those are joined first whose joint piece has the
lowest rank. That is merging, with every way to cut a piece in two as a merge of that piece's rank.
A file of ranks holds neither special tokens nor a pattern: how many ranks it has says whose it is.
In tekken.json special tokens come first: the piece of rank r has the id r plus their number.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Regex

from flyweight.errors import CheckpointError
from flyweight.text.codec import SpecialIds, encode_bytes
from flyweight.text.gguf import MOST_TOKENS, TokenType, read_vocabulary
from flyweight.text.gguf_bpe import make_bpe_codec
from flyweight.text.library import catch_faults
from flyweight.text.pieces import PieceCodec
from flyweight.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from flyweight.validation.untrusted import read_bytes, read_json, shown

MOST_BYTES = 64 << 20
Metadata = dict[str, object]


@dataclass(frozen=True, slots=True)
class RankEncoding:
    """What a file of ranks leaves unsaid: how texts are cut, special tokens, which begin and end a
    text.
    """

    name: str
    rules: PreTokenizer
    special: Mapping[str, int]
    bos: str = ""
    eos: str = ""


def _number_names(first: int, names: Sequence[str]) -> dict[str, int]:
    return {name: first + i for i, name in enumerate(names)}


def _list_llama3_tokens(first: int) -> dict[str, int]:
    """Llama 3's 256 special tokens."""
    names = [
        "begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1",
        "finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id",
        "eot_id", "python_tag", "image",
    ]  # fmt: skip
    names += [f"reserved_special_token_{i}" for i in range(2, 2 + 256 - len(names))]
    return _number_names(first, [f"<|{name}|>" for name in names])


def _list_encodings() -> Iterator[tuple[int, RankEncoding]]:
    end = "<|endoftext|>"
    fim = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    gpt2, cl100k = PRE_TOKENIZERS["gpt-2"], PRE_TOKENIZERS["dbrx"]
    yield 50256, RankEncoding("r50k_base", gpt2, {end: 50256}, eos=end)
    yield 50280, RankEncoding("p50k_base", gpt2, {end: 50256}, eos=end)
    specials = _number_names(100257, [end, *fim]) | {"<|endofprompt|>": 100276}
    yield 100256, RankEncoding("cl100k_base", cl100k, specials, eos=end)
    llama3 = PRE_TOKENIZERS["llama-bpe"]
    bos, eos = "<|begin_of_text|>", "<|end_of_text|>"
    yield 128000, RankEncoding("Llama 3", llama3, _list_llama3_tokens(128000), bos, eos)
    specials = _number_names(151643, [end, "<|im_start|>", "<|im_end|>"])
    yield 151643, RankEncoding("Qwen", PRE_TOKENIZERS["qwen2"], specials, eos=end)
    yield 163584, RankEncoding("Kimi K2", PRE_TOKENIZERS["kimi-k2"], {})
    specials = {end: 199999, "<|endofprompt|>": 200018}
    yield 199998, RankEncoding("o200k_base", PRE_TOKENIZERS["gpt-4o"], specials, eos=end)


ENCODINGS: Mapping[int, RankEncoding] = MappingProxyType(dict(_list_encodings()))


def is_ranks(start: bytes) -> bool:
    """Whether a file begins as these do: base64, and soon a space and a digit."""
    return re.match(rb"[A-Za-z0-9+/]+={0,2} [0-9]", start) is not None


def read_ranks(path: Path) -> tuple[Metadata, PreTokenizer]:
    """A file of ranks (lines of base64, a space, a rank) as `tokenizer.ggml.*`, and how its texts
    are cut.
    """
    pieces: dict[int, str] = {}
    for i, line in enumerate(read_bytes(path, MOST_BYTES).splitlines()):
        text, _, rank = line.partition(b" ")
        try:
            pieces[int(rank)] = encode_bytes(b64decode(text, validate=True))
        except ValueError:
            raise CheckpointError(
                f"{path}: line {i + 1} is {shown(line)}, not base64, a space and a rank"
            ) from None
    if len(pieces) not in ENCODINGS:
        known = ", ".join(f"{count} ({e.name})" for count, e in ENCODINGS.items())
        raise CheckpointError(f"{path}: {len(pieces)} ranks; known: {known}")
    encoding = ENCODINGS[len(pieces)]
    metadata = make_metadata(pieces, encoding.special, str(path))
    for key, name in (("bos", encoding.bos), ("eos", encoding.eos)):
        if name:
            metadata[f"tokenizer.ggml.{key}_token_id"] = encoding.special[name]
    metadata["tokenizer.ggml.add_bos_token"] = bool(encoding.bos)
    return metadata, replace(encoding.rules, ignore_merges=True)


def make_metadata(pieces: Mapping[int, str], special: Mapping[str, int], where: str) -> Metadata:
    """Pieces and special tokens by id; ids that no token has stay without a piece."""
    count = 1 + max(*pieces, *special.values(), 0)
    if min(*pieces, *special.values(), 0) < 0 or count > MOST_TOKENS:
        raise CheckpointError(f"{where}: a rank is outside 0 to {MOST_TOKENS - 1}")
    tokens, types = [""] * count, [TokenType.UNUSED.value] * count
    for token, piece in pieces.items():
        tokens[token], types[token] = piece, TokenType.NORMAL.value
    for name, token in special.items():
        tokens[token], types[token] = name, TokenType.CONTROL.value
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
    }


def load_ranked(
    metadata: Mapping[str, object], rules: PreTokenizer
) -> tuple[PieceCodec, SpecialIds]:
    """A codec whose merges follow from the order of its pieces."""
    vocabulary = read_vocabulary(metadata, add_bos=rules.add_bos)
    pairs = [" ".join(pair) for pair in find_merges(vocabulary.select_types(TokenType.NORMAL))]
    return make_bpe_codec(vocabulary, pairs, rules), vocabulary.marks


def find_merges(ranks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Every way to cut a piece in two, lowest rank first."""
    for piece in sorted(ranks, key=ranks.__getitem__):
        ways = [
            (piece[:i], piece[i:])
            for i in range(1, len(piece))
            if piece[:i] in ranks and piece[i:] in ranks
        ]
        yield from sorted(ways, key=lambda way: (ranks[way[0]], ranks[way[1]]))


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
