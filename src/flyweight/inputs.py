"""What may be given in addition to options: prompts as mappings, and an adapter by vLLM's class.

Invariant: types only; what they hold is checked in `prompts`.  Standard library only.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from flyweight.errors import RequestError


class TextPrompt(TypedDict):
    """A prompt as text.  `cache_salt` keeps its prefix-cache entries apart."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text they represent, where it is known."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


SingletonPrompt = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
PromptType = SingletonPrompt


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """vLLM's name for one of the adapters that were loaded with the model: `lora_name` is its name
    in `adapters`, `lora_path` its folder, if it is given.  `lora_int_id` has no effect.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str | os.PathLike[str] = ""
    base_model_name: str | None = None

    def adapter(self, known: Mapping[str, str | os.PathLike[str]]) -> str:
        """Its name among the adapters that are loaded.  Raises `RequestError`."""
        name, path = self.lora_name, os.fspath(self.lora_path)
        if name not in known:
            folder = path or "FOLDER"
            raise RequestError(
                f"{name!r} is not loaded; known: {', '.join(known) or 'none'}; adapters are "
                f"loaded with the model: adapters={{{name!r}: {folder!r}}}",
                "lora_request",
            )
        folder = os.fspath(known[name])
        if path and _resolve(path) != _resolve(folder):
            raise RequestError(
                f"{name!r} has lora_path = {path!r}, but the adapter of this name was loaded "
                f"from {folder!r}; leave lora_path out, or load both under different names",
                "lora_request",
            )
        return name


LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None


def _resolve(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))
