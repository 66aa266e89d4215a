"""Log-probabilities in the formats of OpenAI's two APIs, vLLM and llama-server.

Invariant: one entry per token, the chosen one first.  A token's bytes are its own, though its text
may be an incomplete character.  Offsets are those in the reply's text, whole or streamed.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec

from flyweight.outputs import Logprob
from flyweight.requests.collector import Collector
from flyweight.server.transport.replies import encode
from flyweight.text.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no minus infinity
RUN = 128  # entries encoded in one call, during which no other thread runs
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")  # of /v1/completions
Entry = dict[int, Logprob]
Lists = dict[str, list[Any]]


def encode_list(items: Iterable[object]) -> msgspec.Raw:
    """A JSON list, encoded as its items are made, so that they are never all in memory."""
    left = iter(items)
    runs: list[bytes] = []
    while run := list(islice(left, RUN)):
        runs.append(encode(run)[1:-1])
    return msgspec.Raw(b"[" + b",".join(runs) + b"]")


class TokenSpelling:
    """How tokens are written: as their text, or (`ids`) as "token_id:421"."""

    def __init__(self, tokenizer: Tokenizer, ids: bool | None = False) -> None:
        self.tokenizer, self.ids = tokenizer, bool(ids)

    def spell(self, token: int, spelled: str) -> str:
        return f"token_id:{token}" if self.ids else spelled

    def get_bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token, special=True)

    def make_token(self, token: int, found: Logprob) -> dict[str, Any]:
        return {
            "token": self.spell(token, found.decoded_token),
            "logprob": _make_finite(found.logprob),
            "bytes": list(self.get_bytes(token)),
        }


class PromptScores:
    """A prompt's log-probabilities, with `most` alternatives where it is echoed.  They are the same
    for all its choices, so they are encoded once.
    """

    def __init__(self, collector: Collector, most: int, spelling: TokenSpelling) -> None:
        self.collector, self.most, self.spelling = collector, most, spelling

    @cached_property
    def prompt_logprobs(self) -> msgspec.Raw:
        """vLLM's `prompt_logprobs`."""
        return encode_prompt_scores(self.collector)

    @cached_property
    def echoed(self) -> dict[str, bytes]:
        """The beginnings of the lists of a choice that echoes the prompt."""
        ids = self.collector.request.tokens
        places = find_offsets(self.collector.echo, [self.spelling.get_bytes(one) for one in ids])
        entries = self.collector.read_prompt_logprobs() or ()
        left = zip(ids, entries, places, strict=False)
        runs: dict[str, list[bytes]] = {name: [] for name in LISTS}
        while run := list(islice(left, RUN)):
            lists: Lists = {name: [] for name in LISTS}
            for token, entry, at in run:
                _add(lists, self.spelling, token, entry, at, self.most)
            for name, found in lists.items():
                runs[name].append(encode(found)[1:-1])
        return {name: b",".join(found) for name, found in runs.items()}


class TextScores:
    """A choice's log-probabilities for /v1/completions as they arrive, with `most` alternatives;
    those of the prompt first, if it is echoed.
    """

    def __init__(self, collector: Collector, prompt: PromptScores) -> None:
        self.most, self.spelling = prompt.most, prompt.spelling
        params = collector.request.params
        special = collector.tokenizer.special_ids
        self.hidden = special if params.skip_special_tokens else frozenset()
        self.at = len(collector.echo)  # where the answer's next token begins in the text
        self.prompt = prompt if params.echo else None  # until it was written
        self.listed = bool(params.logprob_token_ids)

    def write(self, fresh: Sequence[Entry]) -> dict[str, Any]:
        """The lists of new tokens."""
        lists: Lists = {name: [] for name in LISTS}
        for entry in fresh:
            token = next(iter(entry))
            most = None if self.listed else self.most
            _add(lists, self.spelling, token, entry, self.at, most)
            self.at += (
                0 if token in self.hidden else count_characters(self.spelling.get_bytes(token))
            )
        prompt, self.prompt = self.prompt, None
        if prompt is None:
            return {**lists, "top_logprobs": encode_list(lists["top_logprobs"])}
        return {name: _append(prompt.echoed[name], found) for name, found in lists.items()}


def _append(prompt: bytes, found: list[Any]) -> msgspec.Raw:
    """A list that begins with the prompt's entries."""
    runs = [prompt, bytes(encode_list(found))[1:-1]]
    return msgspec.Raw(b"[" + b",".join([run for run in runs if run]) + b"]")


def _add(
    lists: Lists,
    spelling: TokenSpelling,
    token: int,
    entry: Entry | None,
    at: int,
    most: int | None,
) -> None:
    """Adds a token to the lists; `entry` is None for the first token of a prompt."""
    chosen = entry[token] if entry else None
    unknown = spelling.get_bytes(token).decode("utf-8", "replace")
    text = spelling.spell(token, chosen.decoded_token if chosen else unknown)
    best: dict[str, float] = {}
    for i, one in (entry or {}).items():
        if i == token or _is_listed(one, most):  # the chosen one is always listed
            best.setdefault(spelling.spell(i, one.decoded_token), _make_finite(one.logprob))
    lists["tokens"].append(text)
    lists["token_logprobs"].append(_make_finite(chosen.logprob) if chosen else None)
    lists["top_logprobs"].append(best if chosen else None)
    lists["text_offset"].append(at)


def encode_chat_scores(
    found: Sequence[Entry], most: int | None, spelling: TokenSpelling
) -> dict[str, Any]:
    """For /v1/chat/completions, with `most` alternatives, or all (None)."""
    positions = encode_list(_make_position(entry, most, spelling) for entry in found)
    return {"content": positions, "refusal": None}


def encode_token_scores(found: Sequence[Entry], spelling: TokenSpelling) -> msgspec.Raw:
    """For llama-server's /completion, with each token's id."""
    return encode_list(_make_token(entry, spelling) for entry in found)


def _make_token(entry: Entry, spelling: TokenSpelling) -> dict[str, Any]:
    every = {
        token: {"id": token, **spelling.make_token(token, one)} for token, one in entry.items()
    }
    ranked = [every[token] for token, _ in sorted(entry.items(), key=_get_rank)]
    return {**next(iter(every.values())), "top_logprobs": ranked}


def encode_prompt_scores(collector: Collector) -> msgspec.Raw:
    """vLLM's `prompt_logprobs`: null for the first token, then candidates by their ids."""
    return encode_list(_make_candidates(entry) for entry in collector.read_prompt_logprobs() or ())


def _make_candidates(entry: Entry | None) -> dict[str, dict[str, Any]] | None:
    if entry is None:
        return None
    return {
        str(token): {
            "logprob": _make_finite(one.logprob),
            "rank": one.rank,
            "decoded_token": one.decoded_token,
        }
        for token, one in entry.items()
    }


def find_offsets(text: str, pieces: Sequence[bytes]) -> list[int]:
    """The offset of each token in a prompt's text; one that is not in it has no length."""
    raw, at, characters = text.encode("utf-8", "replace"), 0, 0
    found = []
    for piece in pieces:
        found.append(characters)
        for shape in (piece, piece.removeprefix(b" ")):  # some vocabularies put a blank first
            if shape and raw.startswith(shape, at):
                at += len(shape)
                characters += count_characters(shape)
                break
    return found


def count_characters(raw: bytes) -> int:
    """The number of characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)


def _make_position(entry: Entry, most: int | None, spelling: TokenSpelling) -> dict[str, Any]:
    every = {token: spelling.make_token(token, one) for token, one in entry.items()}
    ordered = entry.items() if most is None else sorted(entry.items(), key=_get_rank)
    ranked = [every[token] for token, one in ordered if _is_listed(one, most)]
    return {**next(iter(every.values())), "top_logprobs": ranked}


def _is_listed(one: Logprob, most: int | None) -> bool:
    """Whether a candidate is one of the `most` likely; None: all are listed."""
    return most is None or (one.rank is not None and 0 < one.rank <= most)


def _get_rank(pair: tuple[int, Logprob]) -> int:
    return pair[1].rank or 0


def _make_finite(value: float) -> float:
    return max(value, LOWEST)
