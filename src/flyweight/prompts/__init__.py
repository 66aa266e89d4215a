"""Prompts: what breaks the prefix cache, and templates that pack a context into a token budget or
merge documents into one request.

`from flyweight.prompts import RagTemplate`; names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flyweight.prompts.merging import MergedPrompt, MergeTemplate
    from flyweight.prompts.rag import RagPrompt, RagTemplate

__all__ = ["MergeTemplate", "MergedPrompt", "RagPrompt", "RagTemplate"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "rag" if name.startswith("Rag") else "merging"
    return getattr(import_module(f"{__name__}.{module}"), name)
