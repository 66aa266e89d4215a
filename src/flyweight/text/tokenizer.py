"""One vocabulary, ready to use, whatever file it came from; `load_tokenizer` picks the kind.

Invariant: a `Tokenizer` never changes and may be shared by threads.  It knows nothing of prompts'
meaning, of chat templates beyond their text, or of the model whose ids it makes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyweight.errors import CheckpointError, nearest
from flyweight.text.codec import Codec, SpecialIds, TextStream
from flyweight.text.files import load_files
from flyweight.text.gguf_bpe import load_gguf_bpe
from flyweight.text.gguf_spm import load_spm
from flyweight.text.unigram import load_unigram
from flyweight.text.wordpiece import load_wordpiece
from flyweight.validation.untrusted import shown


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

        `add_special` adds BOS and EOS as the vocabulary asks; `parse_special` reads special tokens
        written out in the text (what a prompt means to transformers).  Pass False for text that
        must not be able to forge them.
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
