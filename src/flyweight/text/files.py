"""Which file of a folder is its vocabulary, and how each kind of file is read.

tokenizer.json comes first: where it is, its publisher means it to be used.  Files without one are
brought into GGUF's metadata, with what the files beside them say laid over.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from flyweight.errors import CheckpointError
from flyweight.text.codec import Codec, SpecialIds
from flyweight.text.companions import lay_over
from flyweight.text.gguf_bpe import load_gguf_bpe
from flyweight.text.gguf_spm import load_spm
from flyweight.text.hf import load_hf
from flyweight.text.pretokenizers import PreTokenizer
from flyweight.text.ranks import Metadata, is_ranks, load_ranked, read_ranks
from flyweight.text.sentencepiece import is_sentencepiece, read_sentencepiece
from flyweight.text.tekken import read_tekken
from flyweight.text.unigram import load_unigram
from flyweight.text.wordlists import read_merges, read_words
from flyweight.text.wordpiece import load_wordpiece

Loaded = tuple[Codec, SpecialIds]

# In the order of trust; a pattern's first match counts.
NAMES = (
    "tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model", "*.tiktoken",
    "spiece.model", "sentencepiece.bpe.model", "*.spm", "*.model.v*", "vocab.json", "vocab.txt",
)  # fmt: skip


def load_files(path: Path) -> Loaded:
    """The tokenizer in a folder, or in one file that is named.  Raises `CheckpointError`."""
    file = _find_vocabulary(path) if path.is_dir() else path
    if not file.is_file():  # opening a pipe would wait for ever
        raise CheckpointError(f"{file}: not a regular file; {_describe_search()}")
    return _choose_reader(file)(file)


def _find_vocabulary(directory: Path) -> Path:
    for pattern in NAMES:
        found = sorted(directory.glob(pattern))
        if pattern == "vocab.json" and not (directory / "merges.txt").is_file():
            continue
        if found:
            return found[0]
    raise CheckpointError(f"{directory}: no tokenizer here; {_describe_search()}")


def _describe_search() -> str:
    return f"looked for {', '.join(NAMES)}".replace("vocab.json", "vocab.json with merges.txt")


def _choose_reader(file: Path) -> Callable[[Path], Loaded]:
    name = file.name
    if name == "tekken.json":
        return partial(_load_ranks, read_tekken)
    if name == "vocab.json" or name == "merges.txt":
        return _load_merges
    if name.endswith(".json"):
        return _load_json
    if name.endswith(".txt"):
        return _load_words
    with open(file, "rb") as stream:
        start = stream.read(128)
    if is_sentencepiece(start):
        return _load_sentencepiece
    if not is_ranks(start):
        raise CheckpointError(f"{file}: not a tokenizer's file; {_describe_search()}")
    return partial(_load_ranks, read_ranks)


def _load_json(file: Path) -> Loaded:
    if file.name != "tokenizer.json":
        raise CheckpointError(f"{file}: not a tokenizer's file; {_describe_search()}")
    return load_hf(file.parent)


def _load_ranks(read: Callable[[Path], tuple[Metadata, PreTokenizer]], file: Path) -> Loaded:
    metadata, rules = read(file)
    return load_ranked(lay_over(metadata, file.parent), rules)


def _load_merges(file: Path) -> Loaded:
    return load_gguf_bpe(lay_over(read_merges(file.parent), file.parent))


def _load_words(file: Path) -> Loaded:
    return load_wordpiece(lay_over(read_words(file), file.parent))


def _load_sentencepiece(file: Path) -> Loaded:
    metadata = lay_over(read_sentencepiece(file), file.parent)
    load = load_spm if metadata["tokenizer.ggml.model"] == "llama" else load_unigram
    return load(metadata)
