"""Prompts to load a server with: random, behind common prefixes, sonnets, conversations, a file.

Invariant: a dataset gives exactly as many requests as wanted, or refuses; the same seed gives the
same. Names and meanings are vLLM's.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyweight.bench.serving.requests import LoadRequest
from flyweight.bench.serving.vocabulary import PromptMaker
from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import one_line, shown

MOST_LEN = 1 << 20
LEAST_SHARED, MOST_PROMPT, MOST_CONVERSATION = (
    4,
    1024,
    2048,
)  # of conversations, tokens: vLLM's bounds
POEM = "Pick as many lines from the following poem lines:\n"


@dataclass(frozen=True, slots=True)
class Random:
    """Lengths from `length` · (1 - ratio) to `length` · (1 + ratio), all the same likely; `prefix`
    tokens that all have in common come before.
    """

    input: int = 1024
    output: int = 128
    ratios: tuple[float, float] = (0.0, 0.0)  # of input, of output
    prefix: int = 0

    def __post_init__(self) -> None:
        whole("random_input_len", self.input, 0 if self.prefix else 1, MOST_LEN)
        whole("random_output_len", self.output, 1, MOST_LEN)
        whole("random_prefix_len", self.prefix, 0, MOST_LEN)

    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]:
        prefix = words.draw(rng, self.prefix)
        found = []
        for _ in range(count):
            length = max(0 if self.prefix else 1, _draw_length(self.input, self.ratios[0], rng))
            output = max(1, _draw_length(self.output, self.ratios[1], rng))
            ids = prefix + words.draw(rng, length)
            found.append(LoadRequest(words.make_prompt(ids), len(ids), output))
        return found


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`prefixes` beginnings, each before as many endings of its own as it takes."""

    prefixes: int = 5
    prefix: int = 512
    suffix: int = 128
    output: int = 128

    def __post_init__(self) -> None:
        whole("prefix_repetition_num_prefixes", self.prefixes, 1, MOST_LEN)
        whole("prefix_repetition_prefix_len", self.prefix, 1, MOST_LEN)
        whole("prefix_repetition_suffix_len", self.suffix, 1, MOST_LEN)
        whole("prefix_repetition_output_len", self.output, 1, MOST_LEN)

    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]:
        heads = [words.draw(rng, self.prefix) for _ in range(self.prefixes)]
        found = []
        for i in range(count):
            ids = heads[i % len(heads)] + words.draw(rng, self.suffix)
            found.append(LoadRequest(words.make_prompt(ids), len(ids), self.output))
        rng.shuffle(found)
        return found


@dataclass(frozen=True, slots=True)
class Sonnet:
    """Lines of a poem: `prefix` tokens of them the same for all, then lines by chance."""

    lines: Sequence[str]
    input: int = 550
    output: int = 150
    prefix: int = 200

    def __post_init__(self) -> None:
        whole("sonnet_input_len", self.input, 1, MOST_LEN)
        whole("sonnet_output_len", self.output, 1, MOST_LEN)
        whole("sonnet_prefix_len", self.prefix, 0, self.input)
        if not self.lines:
            raise ConfigError("dataset_path: the file has no lines")

    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]:
        common, size = POEM, 0
        for line in self.lines:
            if words.count(common + line + "\n") > self.prefix:
                break
            common, size = common + line + "\n", size + 1
        each = max(1, sum(map(len, self.lines)) // len(self.lines) // 4)  # tokens of a line, about
        many = self.input // each + 1
        return [
            LoadRequest(
                words.fit(common + "\n".join(rng.choices(self.lines, k=many)), self.input),
                self.input,
                self.output,
            )
            for _ in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Conversations:
    """The first turn of each conversation requests as many tokens as the second has, or `output`;
    too few of them are repeated unless `again` is off.
    """

    talks: Sequence[Mapping[str, Any]]
    output: int | None = None
    again: bool = True

    def __post_init__(self) -> None:
        if self.output is not None:
            whole("sharegpt_output_len", self.output, 1, MOST_LEN)

    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]:
        order = [*self.talks]
        rng.shuffle(order)
        found: list[LoadRequest] = []
        for conversation in order:
            if len(found) == count:
                break
            request = self._make_request(words, conversation)
            if request is not None:
                found.append(request)
        return repeat_requests(found, count, self.again)

    def _make_request(
        self, words: PromptMaker, conversation: Mapping[str, Any]
    ) -> LoadRequest | None:
        """None for one without two turns of text, and for lengths that vLLM passes over."""
        turns = conversation.get("conversations")
        if not isinstance(turns, list) or len(turns) < 2:
            return None
        texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
        if not all(isinstance(text, str) for text in texts):
            return None
        prompt, answer = _replace_surrogates(str(texts[0])), _replace_surrogates(str(texts[1]))
        length = words.count(prompt)
        output = self.output or words.count(answer)
        short = length < LEAST_SHARED or (self.output is None and output < LEAST_SHARED)
        if short or length > MOST_PROMPT or length + output > MOST_CONVERSATION:
            return None
        return LoadRequest(prompt, length, output)


@dataclass(frozen=True, slots=True)
class Custom:
    """Lines of JSON with a `prompt`, and `output_tokens` where `output` is not given."""

    records: Sequence[Mapping[str, Any]]
    output: int | None = 256
    again: bool = True
    shuffled: bool = field(default=True)

    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]:
        order = [*self.records]
        if self.shuffled:
            rng.shuffle(order)
        return repeat_requests(
            [self._make_request(words, one) for one in order[:count]], count, self.again
        )

    def _make_request(self, words: PromptMaker, record: Mapping[str, Any]) -> LoadRequest:
        prompt = record.get("prompt")
        output = record.get("output_tokens") if self.output is None else self.output
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f"dataset_path: a line has no prompt: {shown(dict(record))}")
        whole("output_tokens" if self.output is None else "custom_output_len", output, 1, MOST_LEN)
        assert isinstance(output, int)
        prompt = _replace_surrogates(prompt)
        return LoadRequest(prompt, words.count(prompt), output)


def repeat_requests(requests: list[LoadRequest], count: int, again: bool) -> list[LoadRequest]:
    """`count` of them, over and over where there are fewer and that is allowed."""
    if not requests:
        raise ConfigError("dataset_path: there is no prompt of a usable length in the file")
    if len(requests) < count and not again:
        return requests
    return [requests[i % len(requests)] for i in range(count)]


def read_text_lines(path: Path) -> list[str]:
    """The lines of a file that hold something."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line.  Raises `ConfigError`."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse_object(line, f"{path}, line {number}")


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """The objects of a list that is a whole file.  Raises `ConfigError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {one_line(str(error))}") from None
    if not isinstance(found, list):
        raise ConfigError(f"{path}: a list of conversations was expected")
    return [one for one in found if isinstance(one, dict)]


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {one_line(str(error))}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: a JSON object was expected")
    return found


def _replace_surrogates(text: str) -> str:
    """Half characters, which a file's JSON may have and no request can, are made question marks."""
    return text.encode("utf-8", "replace").decode()


def _draw_length(length: int, ratio: float, rng: random.Random) -> int:
    return rng.randint(math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio)))
