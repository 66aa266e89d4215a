"""How models write their calls and their reasoning, under the names of vLLM's parsers.

Invariant: a mark's first character does not come again in it, so that a failed match never has to
look back.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from flyweight.errors import ConfigError, nearest

T = TypeVar("T")


def _is_plain(mark: str) -> bool:
    return not mark or mark[0] not in mark[1:]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Calls stand behind `trigger`, or, where they may be `bare`, at the beginning of the answer;
    several are separated by `separator` (empty: by nothing) or `listed` in brackets, and followed
    by `closer`.  `headed` ones may have their name in front, and have where the model `heads`
    them.  `tagged` ones are Qwen3-Coder's, `pythonic` ones Python's.  `short_ids`: nine letters or
    digits.
    """

    trigger: str = ""
    bare: bool = False
    separator: str = ""
    listed: bool = False
    closer: str = ""
    headed: bool = False
    heads: bool = False
    tagged: bool = False
    pythonic: bool = False
    short_ids: bool = False
    arguments: str = "arguments"  # the key that models of this format were trained with

    def __post_init__(self) -> None:
        assert _is_plain(self.trigger) and _is_plain(self.closer)
        assert self.trigger or self.bare


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What reasoning stands between."""

    opening: str
    closing: str

    def __post_init__(self) -> None:
        assert _is_plain(self.opening) and _is_plain(self.closing)

    def find_open_reasoning(self, prompt: str, continued: str | None) -> str | None:
        """What a prompt that ends within reasoning has of it, None where it does not; `continued`
        is the message that the answer goes on with.
        """
        if continued is not None:
            begun = continued.rfind(self.opening)
            within = begun > continued.rfind(self.closing)
            return continued[begun + len(self.opening) :] if within else None
        return "" if prompt.rstrip().endswith(self.opening) else None


HERMES = CallFormat(trigger="<tool_call>", closer="</tool_call>")
LLAMA = CallFormat(trigger="<|python_tag|>", bare=True, separator=";", arguments="parameters")
MISTRAL = CallFormat(trigger="[TOOL_CALLS]", listed=True, headed=True, short_ids=True)
MISTRAL_HEADED = replace(MISTRAL, heads=True)
JSON = CallFormat(bare=True, listed=True)
TAGGED = replace(HERMES, tagged=True)
PYTHONIC = replace(JSON, pythonic=True)
THINK = ReasoningMarks("<think>", "</think>")

FORMATS = {
    "hermes": HERMES,
    "qwen": HERMES,
    "llama3_json": LLAMA,
    "llama4_json": LLAMA,
    "mistral": MISTRAL,
    "json": JSON,
    "qwen3_coder": TAGGED,
    "qwen3_xml": TAGGED,
    "pythonic": PYTHONIC,
    "llama4_pythonic": PYTHONIC,
}
REASONING = {
    "deepseek_r1": THINK,
    "qwen3": THINK,
    "think": THINK,
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
}
AUTO, NONE = "auto", "none"
HARMONY = {"openai", "openai_gptoss", "gptoss", "gpt_oss", "harmony"}  # gpt-oss, by other names


def find_format(name: str, template: str) -> CallFormat | None:
    """The parser of that name; "auto": what the model's chat template shows.  Raises
    `ConfigError`.
    """
    if name == NONE:
        return None
    headed = "[ARGS]" in template
    if name != AUTO:
        found = _find_by_name("tool_call_parser", name, FORMATS)
        return MISTRAL_HEADED if found is MISTRAL and headed else found
    if MISTRAL.trigger in template:
        return MISTRAL_HEADED if headed else MISTRAL
    if "<function=" in template:
        return TAGGED
    if "func_name1(" in template:
        return PYTHONIC
    if HERMES.trigger in template:
        return HERMES
    if LLAMA.trigger in template or '"parameters":' in template:
        return LLAMA
    return JSON


def find_marks(name: str, template: str) -> ReasoningMarks | None:
    """The same for reasoning; none where the template has no marks of it."""
    if name == NONE:
        return None
    if name != AUTO:
        return _find_by_name("reasoning_parser", name, REASONING)
    for marks in REASONING.values():
        if marks.closing in template:
            return marks
    return None


def _find_by_name(field: str, name: str, known: dict[str, T]) -> T:
    if name in known:
        return known[name]
    listed = ", ".join((AUTO, NONE, *known))
    if name in HARMONY:
        raise ConfigError(
            "is not offered: the channels gpt-oss answers in (harmony) are not read; "
            f"nearest valid: {NONE}",
            field,
            value=name,
            allowed=listed,
        )
    raise ConfigError(f"is not known{nearest(name[:80], known)}", field, value=name, allowed=listed)
