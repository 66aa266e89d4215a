"""An option of vLLM's that chooses nothing here: there is one way, and it is said why.

Invariant: a value that asks for what is so anyway is put into the ledger of effective settings; any
other is refused, with what to use instead.
"""

import json
import re
from dataclasses import dataclass
from typing import Literal

from flyweight.arguments.flags import Flag

FILES = (  # options that name some
    "api-key-file", "chat-template", "lora-modules", "log-file", "tokenizer",
    "uds", "ssl-certfile", "ssl-keyfile",
)  # fmt: skip
SECRET = ("hf-token",)  # never shown
FOLDERS = re.compile(r"[^\s=\"{}<>%]*/")
Value = bool | str | list[str]
NONE: tuple[str, ...] = ()
EVERY = ("any whole number",)
ANY = ("any value",)
ZEROS = ('{"image":0}',)  # an object of numbers that are all 0
BOTH = ("on", "off")
COUNT = re.compile(r"[0-9]+(\.0*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Support:
    """`so` are the values that ask for what is so; `active` and `why` are told of them, `instead`
    of the others.
    """

    name: str
    kind: Literal["switch", "text"]
    so: tuple[str, ...]
    active: str
    why: str
    instead: str
    also: tuple[str, ...] = ()

    @property
    def flag(self) -> Flag:
        return Flag(self.name, self.kind, self.why, also=self.also)

    def refusal(self, value: Value) -> str | None:
        """Why this value is not supported; None where it is so anyway."""
        if compact(said(value)) in self.so or self._fits(said(value)):
            return None
        shown = "..." if self.name in SECRET else said(value)
        asked = f"--{self.name} = {shown}" if self.kind == "text" else spelt(self.name, value)
        return f"{asked} is not supported: {self.why}; {self.instead}"

    def _fits(self, text: str) -> bool:
        """Whether a value is of the kind that `so` stands for."""
        if self.so == EVERY:
            return COUNT.fullmatch(text) is not None
        return self.so == ANY or (self.so == ZEROS and _zeros(text))


def _zeros(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and all(type(n) is int and n == 0 for n in found.values())


def compact(text: str) -> str:
    """An object however it is spaced; any other text is itself."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":")) if text[:1] == "{" else text
    except (ValueError, RecursionError):
        return text


def said(value: Value) -> str:
    """A value as it was written."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else " ".join(value)


def written(name: str, value: Value) -> str:
    """An option and its value as they were written, cut, and without the folders of files: whoever
    has a key may read it in the ledger.
    """
    if isinstance(value, bool):
        return spelt(name, value)
    text = said(value)
    return f"--{name} {FOLDERS.sub('', text) if name in FILES else text}"[:200]


def spelt(name: str, value: Value) -> str:
    """A switch as it was written."""
    return f"--no-{name}" if value is False else f"--{name}"
