"""The model's tokenizer under the names of transformers' tokenizers, which programs written for
vLLM call: `tokenizer.apply_chat_template(messages, tokenize=False)`, `tokenizer(text).input_ids`.

Invariant: ids and text are those of `Tokenizer` and of the model's chat template; nothing here has
a vocabulary of its own.  It knows nothing of padding, truncation or tensors.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from flyweight.errors import RequestError
from flyweight.requests.preparing import Message, render_conversation
from flyweight.text.tokenizer import Tokenizer

# Arguments of transformers that request arrays or change lengths; they are not template switches.
UNSUPPORTED = (
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_assistant_tokens_mask",
)


class TokenizerEncoding(dict[str, list[Any]]):
    """`input_ids` and `attention_mask` (all 1), by key or as attributes."""

    @property
    def input_ids(self) -> list[Any]:
        return self["input_ids"]

    @property
    def attention_mask(self) -> list[Any]:
        return self["attention_mask"]


class PreTrainedTokenizer:
    """A read-only view of a `Tokenizer`.

    As in transformers, `encode` adds BOS and EOS as the vocabulary requires unless
    `add_special_tokens=False`, and `decode` keeps special tokens unless `skip_special_tokens=True`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._own = tokenizer

    def __repr__(self) -> str:
        return f"PreTrainedTokenizer(vocab_size={self.vocab_size})"

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def vocab_size(self) -> int:
        return self._own.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._own.bos_id

    @property
    def eos_token_id(self) -> int | None:
        return self._own.eos_id

    @property
    def bos_token(self) -> str | None:
        return self._get_piece(self._own.bos_id)

    @property
    def eos_token(self) -> str | None:
        return self._get_piece(self._own.eos_id)

    @property
    def pad_token(self) -> str | None:
        return self._own.marks.pad_token or None

    @property
    def unk_token(self) -> str | None:
        return self._own.marks.unk_token or None

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._own.special_ids)

    @property
    def chat_template(self) -> str | None:
        return self._own.chat_template

    @overload
    def __call__(self, text: str, *, add_special_tokens: bool = ...) -> TokenizerEncoding: ...
    @overload
    def __call__(self, text: list[str], *, add_special_tokens: bool = ...) -> TokenizerEncoding: ...
    def __call__(
        self, text: str | list[str], *, add_special_tokens: bool = True
    ) -> TokenizerEncoding:
        """Ids of a text, or a list of them for a list of texts."""
        if isinstance(text, str):
            return make_encoding(self.encode(text, add_special_tokens))
        several = [self.encode(one, add_special_tokens) for one in text]
        return TokenizerEncoding(
            input_ids=several, attention_mask=[[1] * len(ids) for ids in several]
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._own.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._own.decode(ids, skip_special_tokens)

    def batch_decode(
        self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def get_vocab(self) -> dict[str, int]:
        """Ids by the vocabulary's own spelling; the first id where two are spelled alike."""
        return dict(self._ids)

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """None for a spelling that the vocabulary does not have."""
        if isinstance(tokens, str):
            return self._ids.get(tokens)
        return [self._ids.get(token) for token in tokens]

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        if isinstance(ids, int):
            return self._own.piece(ids)
        return [self._own.piece(token) for token in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **template_switches: Any,
    ) -> Any:
        """The prompt of a conversation, or a list of them for several: ids, a `TokenizerEncoding`
        (return_dict=True) or text (tokenize=False).

        Unlike transformers 5, ids come as a list unless `return_dict` requests an
        `TokenizerEncoding`. Further keywords are the template's own switches.  Raises
        `RequestError`.
        """
        if refused := [name for name in UNSUPPORTED if template_switches.get(name)]:
            raise RequestError(
                "is not supported: prompts are lists of ids without padding or truncation; "
                "leave it out",
                refused[0],
                value=template_switches[refused[0]],
            )
        own = {k: v for k, v in template_switches.items() if k not in UNSUPPORTED}
        options = {
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        several = bool(conversation) and not isinstance(conversation[0], Mapping | str)
        conversations: Any = conversation if several else [conversation]
        made = [
            self._render(conversation, chat_template, tools, options, own)
            for conversation in conversations
        ]
        if not tokenize:
            found: list[Any] = [one["prompt"] for one in made]
        else:
            ids = [one["prompt_token_ids"] for one in made]
            found = [make_encoding(one) for one in ids] if return_dict else ids
        return found if several else found[0]

    def _render(
        self,
        conversation: Sequence[Message],
        chat_template: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
        own: Mapping[str, Any],
    ) -> dict[str, Any]:
        from flyweight.text.messages import merge_options  # Jinja is for chats alone

        given = {name: value for name, value in options.items() if value is not None}
        variables = merge_options(given, own)
        return render_conversation(
            self._own, conversation, chat_template=chat_template, tools=tools, **variables
        )

    @cached_property
    def _ids(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for token in range(self.vocab_size):
            found.setdefault(self._own.piece(token), token)
        found.pop("", None)
        return found

    def _get_piece(self, token: int | None) -> str | None:
        return None if token is None else self._own.piece(token)


def make_encoding(ids: list[int]) -> TokenizerEncoding:
    return TokenizerEncoding(input_ids=ids, attention_mask=[1] * len(ids))
