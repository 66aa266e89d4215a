"""One vocabulary, ready to use, whatever file it came from; `load_tokenizer` picks the kind and the
file of a folder.

tokenizer.json comes first: where it is, its publisher means it to be used. Files without one are
brought into GGUF's metadata, with what the files next to them say laid over. Invariant: a
`Tokenizer` never changes and may be shared by threads. It knows nothing of prompts' meaning, of
chat templates beyond their text, or of the model whose ids it makes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flyweight.errors import CheckpointError, nearest
from flyweight.text.codec import Codec, SpecialIds, TextStream
from flyweight.text.companions import lay_over, list_companions
from flyweight.text.gguf_bpe import load_gguf_bpe
from flyweight.text.gguf_spm import load_spm, load_unigram
from flyweight.text.hf import load_hf
from flyweight.text.pretokenizers import PreTokenizer
from flyweight.text.ranks import Metadata, is_ranks, load_ranked, read_ranks, read_tekken
from flyweight.text.vocabulary_files import (
    is_sentencepiece,
    read_merges,
    read_sentencepiece,
    read_words,
)
from flyweight.text.wordpiece import load_wordpiece
from flyweight.validation.untrusted import shown

Loaded = tuple[Codec, SpecialIds]

# In the order of trust; a pattern's first match counts.
NAMES = (
    "tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model", "*.tiktoken",
    "spiece.model", "sentencepiece.bpe.model", "*.spm", "*.model.v*", "vocab.json", "vocab.txt",
)  # fmt: skip


def load_files(path: Path) -> Loaded:
    """The tokenizer in a folder, or in one file that is named.  Raises `CheckpointError`."""
    file = _find_vocabulary(path) if path.is_dir() else path
    if not file.is_file():  # opening a pipe would block
        raise CheckpointError(f"{file}: not a regular file; {_describe_search()}")
    return _choose_reader(file)(file)


def _find_vocabulary(directory: Path) -> Path:
    for found in _list_vocabularies(directory):
        return found
    raise CheckpointError(f"{directory}: no tokenizer here; {_describe_search()}")


def _list_vocabularies(directory: Path) -> Iterator[Path]:
    for pattern in NAMES:
        if pattern != "vocab.json" or (directory / "merges.txt").is_file():
            yield from sorted(directory.glob(pattern))


def list_tokenizer_files(directory: Path) -> list[Path]:
    """The files of a folder that its tokenizer is read from.  Raises `CheckpointError`."""
    file = _find_vocabulary(directory)
    found = [file, file.with_name("merges.txt")] if file.name == "vocab.json" else [file]
    return found + list_companions(directory)


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


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A codec and the marks of its vocabulary.  Out-of-range ids have no text; lone surrogates
    become U+FFFD.
    """

    codec: Codec
    marks: SpecialIds

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size})"

    @property
    def vocab_size(self) -> int:
        return self.codec.vocab_size

    @property
    def bos_id(self) -> int | None:
        return self.marks.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.marks.eos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.marks.eos_ids

    @property
    def add_bos(self) -> bool:
        return self.marks.add_bos

    @property
    def special_ids(self) -> frozenset[int]:
        return self.marks.special_ids

    @property
    def chat_template(self) -> str | None:
        return self.marks.chat_template

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of `text`.

        `add_special` adds BOS and EOS as the vocabulary requires; `parse_special` reads special
        tokens written out in the text (what a prompt means to transformers).  Pass False for text
        that must not be able to forge them.
        """
        return self.codec.encode(replace_surrogates(text), add_special, parse_special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self.codec.decode(ids, skip_special)

    def stream(self, context: Sequence[int], skip_special: bool = True) -> TextStream:
        return self.codec.stream(context, skip_special)

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        return self.codec.token_bytes(token, special)

    def piece(self, token: int) -> str:
        return self.codec.piece(token)


def load_tokenizer(source: Path | str | Mapping[str, object]) -> Tokenizer:
    """From a folder or a file of one of `files.NAMES`, or from GGUF metadata (its `tokenizer.*`
    keys).

    Raises CheckpointError for a kind we do not know and for damaged or contradictory files.
    """
    if isinstance(source, Mapping):
        return Tokenizer(*_choose_gguf_kind(source)(source))
    return Tokenizer(*load_files(Path(source)))


def has_vocabulary(source: Path | Mapping[str, object]) -> bool:
    """Whether a folder has a tokenizer's file, or GGUF metadata names a kind."""
    if isinstance(source, Mapping):
        return source.get("tokenizer.ggml.model") is not None
    return not source.is_dir() or any(_list_vocabularies(source))


def _choose_gguf_kind(
    metadata: Mapping[str, object],
) -> Callable[[Mapping[str, object]], tuple[Codec, SpecialIds]]:
    kinds: dict[str, Callable[[Mapping[str, object]], tuple[Codec, SpecialIds]]] = {
        "llama": load_spm,
        "gpt2": load_gguf_bpe,
        "gemma4": load_gguf_bpe,
        "t5": load_unigram,
        "bert": load_wordpiece,
    }
    name = metadata.get("tokenizer.ggml.model")
    if name is None:
        raise CheckpointError(f"tokenizer.ggml.model is missing; known: {', '.join(kinds)}")
    if not isinstance(name, str) or name not in kinds:
        hint = nearest(name[:80], kinds) if isinstance(name, str) else ""
        known = ", ".join(kinds)
        raise CheckpointError(f"tokenizer.ggml.model is {shown(name)}{hint}; known: {known}")
    return kinds[name]


def replace_surrogates(text: str) -> str:
    """`text` as it is read: without halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
