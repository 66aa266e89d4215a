"""Log-probabilities of one part of an answer: of the tokens its text came from, and no others.

Invariant: joined, what is told of a part does not depend on how its tokens came; a token whose text
is in two parts is told of with the first.
"""

from collections.abc import Iterator

import msgspec

from flyweight.outputs import CompletionOutput
from flyweight.requests.collector import Collector, TextPiece
from flyweight.server.apis.logprobs import Entry, TokenSpelling, encode_chat_scores
from flyweight.server.apis.openai.content_blocks import BlockEvent, ContentBlocks
from flyweight.text.tools.deltas import DeltaKind


class PartScores:
    """Of the parts of one choice that are content, `most` alternatives each.  An answer is read
    token by token (`singles`), so that each step of it is known to be of the newest ones.
    """

    def __init__(self, collector: Collector, most: int, spelling: TokenSpelling) -> None:
        params, special = collector.request.params, collector.tokenizer.special_ids
        self.hidden = special if params.skip_special_tokens else frozenset()
        self.most, self.spelling = most, spelling
        self.detokenizer = collector.make_detokenizer()
        # texts that are in no part yet, and what is known of their tokens where it was not told
        self.waiting: list[tuple[str, Entry | None]] = []
        self.follows = True  # whether content now goes on where the last of it ended
        self.runs: list[bytes] = []  # of the part that is open, encoded once

    def split_tokens(self, piece: TextPiece) -> Iterator[TextPiece]:
        """A piece in pieces of a token; what the end gives back is of the last one."""
        left, last = piece.text, len(piece.tokens) - 1
        if last < 0:
            if self.waiting:
                text, entry = self.waiting[-1]
                self.waiting[-1] = (text + left, entry)
            yield piece
        for i, (token, entry) in enumerate(zip(piece.tokens, piece.logprobs or (), strict=True)):
            size = len(self.detokenizer.push([token])) if i < last else len(left)
            text, left = left[:size], left[size:]
            if token not in self.hidden:
                self.waiting.append((text, entry))
            end = (piece.finish, piece.reason) if i == last else (None, None)
            yield TextPiece(piece.choice, text, [token], [entry], *end)

    def step(self, step: BlockEvent) -> msgspec.Raw:
        """What a step tells of: a delta its own tokens, the end of a part all of them."""
        if step.kind is not DeltaKind.CONTENT:
            self.follows = False
            if step.kind is DeltaKind.REASONING and step.what == "delta":
                del self.waiting[:-1]  # the newest may go on as content
            return _join([])
        if step.what == "open":
            self.runs = []
        if step.what != "delta":
            return self.part()
        run = bytes(encode_chat_scores(self._take(step.text), self.most, self.spelling)["content"])[
            1:-1
        ]
        if run:
            self.runs.append(run)
        return _join([run])

    def part(self) -> msgspec.Raw:
        return _join(self.runs)

    def score_answer(self, choice: CompletionOutput, telling: ContentBlocks) -> msgspec.Raw:
        """Of all content of an answer that has come whole."""
        ids, finish = list(choice.token_ids), choice.finish_reason
        answer = TextPiece(0, choice.text, ids, choice.logprobs, finish, choice.stop_reason)
        runs: list[bytes] = []
        for piece in self.split_tokens(answer):
            for step in telling.read_piece(piece):
                self.step(step)
                if step.what == "close" and step.kind is DeltaKind.CONTENT:
                    runs += self.runs
        return _join(runs)

    def _take(self, text: str) -> list[Entry]:
        """Of the tokens of a text that goes on where the one before ended, or came last: marks and
        blanks between them are in no part.
        """
        waiting = "".join(one for one, _ in self.waiting)
        on = self.follows and waiting.startswith(text)
        begin = 0 if on else max(0, waiting.rfind(text))
        self.follows = True
        end = begin + len(text)
        found: list[Entry] = []
        kept: list[tuple[str, Entry | None]] = []
        at = 0
        for one, entry in self.waiting:
            first, at = at, at + len(one)
            if entry is not None and first < end and (at > begin or first == begin):
                found.append(entry)
                entry = None
            if at > end or first >= end:
                kept.append((one[max(0, end - first) :], entry))
        self.waiting = kept
        return found


def _join(runs: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(runs) + b"]")
