"""A conversation: its turns, the prompt they make, and the file that keeps them.

Invariant: the prompt is made of the system text and the turns alone, so that a turn can be taken
back.  Models with a chat template get messages; others continue the text so far.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from flyweight.errors import FlyweightError, RequestError
from flyweight.llm import LLM
from flyweight.requests.preparing import Message
from flyweight.requests.prompts import Prompt
from flyweight.types import SamplingParams
from flyweight.validation.untrusted import read_json, shown

CLOSERS = tuple(".,;:!?)'\"")
FREED = 4  # where the oldest turns are dropped, a quarter of the context is free afterwards
LEAST = 8  # they are dropped where less than an eighth of it is left for an answer


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """What a person said, and the model's answer."""

    said: str
    answer: str


class Conversation:
    """The turns so far with one model; where it `shifts`, a full context drops the oldest."""

    def __init__(self, llm: LLM, system: str, shifts: bool = True) -> None:
        self.llm, self.system, self.shifts = llm, system, shifts
        self.chats = llm.tokenizer.chat_template is not None
        self.turns: list[ConversationTurn] = []
        self.longest = llm.loaded.limits.max_model_len

    def prompt(self, line: str, skipped: int = 0) -> Prompt:
        """The conversation, without its `skipped` oldest turns, with one more thing said."""
        turns = self.turns[skipped:]
        if self.chats:
            return self.llm.conversation([*self.messages(turns), {"role": "user", "content": line}])
        text = self.system
        for said, answer in [*((turn.said, turn.answer) for turn in turns), (line, "")]:
            apart = text and not text[-1].isspace() and not said.startswith(CLOSERS)
            text += (" " if apart else "") + said + answer
        return text

    def messages(self, turns: list[ConversationTurn]) -> list[Message]:
        """These turns, after the system text, as a chat template takes them."""
        found: list[Message] = []
        if self.system:
            found.append({"role": "system", "content": self.system})
        for turn in turns:
            found.append({"role": "user", "content": turn.said})
            found.append({"role": "assistant", "content": turn.answer})
        return found

    def length(self, prompt: Prompt) -> int:
        """Tokens of a prompt; more than the context where it is too long."""
        try:
            return len(self.llm.make_collector(prompt, SamplingParams()).request.tokens)
        except RequestError as error:
            if error.path != "prompt":
                raise
            return self.longest + 1

    def overflow(self, line: str, most: int | None) -> int:
        """How many of the oldest turns have to go for an answer of up to `most` tokens; 0 where
        nothing that can go would make room.
        """
        if not self.shifts or not self.turns:
            return 0
        wanted = self.longest if most is None else most
        if self.longest - self.length(self.prompt(line)) >= max(
            1, min(wanted, self.longest // LEAST)
        ):
            return 0
        free = 0
        for skipped in range(1, len(self.turns) + 1):
            free = self.longest - self.length(self.prompt(line, skipped))
            if free >= self.longest // FREED:
                return skipped
        return len(self.turns) if free > 0 else 0

    def save(self, file: Path) -> None:
        """Writes the turns as messages; replaces a saved conversation, no other file."""
        if file.exists():
            try:
                read(file)
            except FlyweightError:
                raise RequestError(
                    f"{file} exists and holds no saved conversation; give another name"
                ) from None
        text = json.dumps({"messages": self.messages(self.turns)}, ensure_ascii=False, indent=1)
        try:
            file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{file}: {error.strerror}") from None

    def load(self, file: Path) -> None:
        """Takes over the system text and the turns of a saved conversation."""
        self.system, self.turns = read(file)


def read(file: Path) -> tuple[str, list[ConversationTurn]]:
    """The system text and the turns in a file.  Raises `CheckpointError` where it cannot be read,
    `RequestError` where it holds no conversation.
    """
    messages = read_json(file).get("messages")
    if not isinstance(messages, list):
        raise RequestError(f"{file}: messages = {shown(messages)}; allowed: a list")
    said = [_message(file, at, one) for at, one in enumerate(messages)]
    system = said.pop(0)[1] if said and said[0][0] == "system" else ""
    roles = [role for role, _ in said]
    if roles != ["user", "assistant"] * (len(said) // 2):
        raise RequestError(
            f"{file}: the roles are {shown(roles)}; allowed: user and assistant in turn, after one "
            "system message at most"
        )
    texts = [text for _, text in said]
    return system, [ConversationTurn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]


def _message(file: Path, at: int, message: object) -> tuple[str, str]:
    role, text = (
        (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    )
    if not isinstance(role, str) or not isinstance(text, str):
        raise RequestError(
            f"{file}: messages[{at}] = {shown(message)}; allowed: a role and a content, both text"
        )
    return role, text
