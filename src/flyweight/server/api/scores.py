"""Log-probabilities as OpenAI's two dialects, vLLM's and llama-server's write them.

Invariant: one entry a token, the chosen one first; a token's bytes are its own, though its text may
be half a character; places in a text are those of the reply, whole or streamed.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from flyweight.collect import Collector
from flyweight.results import Logprob
from flyweight.server.http.sse import encode
from flyweight.text.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no minus infinity
RUN = 128  # entries of a list that are encoded in one call, which lets nobody else run
Entry = dict[int, Logprob]


def in_runs(items: Iterable[object]) -> msgspec.Raw:
    """A JSON list, encoded as its items are made: they are never all there as objects."""
    left = iter(items)
    runs: list[bytes] = []
    while run := list(islice(left, RUN)):
        runs.append(encode(run)[1:-1])
    return msgspec.Raw(b"[" + b",".join(runs) + b"]")


class Spelling:
    """How tokens are written: as their text, or (`ids`) as "token_id:421"."""

    def __init__(self, tokenizer: Tokenizer, ids: bool | None = False) -> None:
        self.tokenizer, self.ids = tokenizer, bool(ids)

    def text(self, token: int, spelled: str) -> str:
        return f"token_id:{token}" if self.ids else spelled

    def raw(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token, special=True)

    def one(self, token: int, found: Logprob) -> dict[str, Any]:
        return {
            "token": self.text(token, found.decoded_token),
            "logprob": _finite(found.logprob),
            "bytes": list(self.raw(token)),
        }


class TextScores:
    """A choice's log-probabilities of /v1/completions as they come, `most` alternatives each; those
    of the prompt first, where it is repeated.
    """

    def __init__(self, collector: Collector, most: int, spelling: Spelling) -> None:
        self.collector, self.most, self.spelling = collector, most, spelling
        params = collector.request.params
        special = collector.tokenizer.special_ids
        self.hidden = special if params.skip_special_tokens else frozenset()
        self.at = len(collector.echo)  # where the answer's next token begins in the text
        self.repeats = params.echo
        self.listed = bool(params.logprob_token_ids)

    def told(self, fresh: Sequence[Entry]) -> dict[str, Any]:
        """Of what is new."""
        lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        if self.repeats:
            self.repeats = False
            self._prompt(lists)
        for entry in fresh:
            token = next(iter(entry))
            self._add(lists, token, entry, self.at, None if self.listed else self.most)
            self.at += 0 if token in self.hidden else begun(self.spelling.raw(token))
        return {**lists, "top_logprobs": in_runs(lists["top_logprobs"])}

    def _prompt(self, lists: dict[str, list[Any]]) -> None:
        ids = self.collector.request.tokens
        places = offsets(self.collector.echo, [self.spelling.raw(one) for one in ids])
        entries = self.collector.prompt_scores() or ()
        for token, entry, at in zip(ids, entries, places, strict=False):
            self._add(lists, token, entry, at, self.most)

    def _add(
        self,
        lists: dict[str, list[Any]],
        token: int,
        entry: Entry | None,
        at: int,
        most: int | None,
    ) -> None:
        """`entry` is none of the prompt's first token, which nothing foretells."""
        chosen = entry[token] if entry else None
        unknown = self.spelling.raw(token).decode("utf-8", "replace")
        text = self.spelling.text(token, chosen.decoded_token if chosen else unknown)
        ranked = [(i, one) for i, one in (entry or {}).items() if _told(one, most)]
        best = {self.spelling.text(i, one.decoded_token): _finite(one.logprob) for i, one in ranked}
        lists["tokens"].append(text)
        lists["token_logprobs"].append(_finite(chosen.logprob) if chosen else None)
        lists["top_logprobs"].append(best if chosen else None)
        lists["text_offset"].append(at)


def chat_scores(found: Sequence[Entry], most: int | None, spelling: Spelling) -> dict[str, Any]:
    """Of /v1/chat/completions, `most` alternatives each, or all there are."""
    return {"content": in_runs(_position(entry, most, spelling) for entry in found)}


def token_scores(found: Sequence[Entry], spelling: Spelling) -> msgspec.Raw:
    """Of llama-server's /completion, with each token's id."""
    return in_runs(_token(entry, spelling) for entry in found)


def _token(entry: Entry, spelling: Spelling) -> dict[str, Any]:
    every = {token: {"id": token, **spelling.one(token, one)} for token, one in entry.items()}
    ranked = [every[token] for token, _ in sorted(entry.items(), key=_rank)]
    return {**next(iter(every.values())), "top_logprobs": ranked}


def prompt_scores(collector: Collector) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: none for the first token, then candidates by their ids."""
    return [
        None
        if entry is None
        else {
            str(token): {
                "logprob": _finite(one.logprob),
                "rank": one.rank,
                "decoded_token": one.decoded_token,
            }
            for token, one in entry.items()
        }
        for entry in collector.prompt_scores() or ()
    ]


def offsets(text: str, pieces: Sequence[bytes]) -> list[int]:
    """Where each token of a prompt begins in its text; one that is not there takes no room."""
    raw, at, characters = text.encode("utf-8", "replace"), 0, 0
    found = []
    for piece in pieces:
        found.append(characters)
        for shape in (piece, piece.removeprefix(b" ")):  # some vocabularies put a blank first
            if shape and raw.startswith(shape, at):
                at += len(shape)
                characters += begun(shape)
                break
    return found


def begun(raw: bytes) -> int:
    """Characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)


def _position(entry: Entry, most: int | None, spelling: Spelling) -> dict[str, Any]:
    every = {token: spelling.one(token, one) for token, one in entry.items()}
    ordered = entry.items() if most is None else sorted(entry.items(), key=_rank)
    ranked = [every[token] for token, one in ordered if _told(one, most)]
    return {**next(iter(every.values())), "top_logprobs": ranked}


def _told(one: Logprob, most: int | None) -> bool:
    """Whether a candidate is among the `most` likely, or all are told of."""
    return most is None or (one.rank is not None and 0 < one.rank <= most)


def _rank(pair: tuple[int, Logprob]) -> int:
    return pair[1].rank or 0


def _finite(value: float) -> float:
    return max(value, LOWEST)
