"""Constraints compiled against a vocabulary: from `StructuredOutputs` to a matcher that says which
tokens may come next.

Invariant: a matcher allows a token exactly where some text that satisfies the constraint goes on
with its bytes, and an end of sequence exactly where the text so far satisfies it.  What the
grammar engine refuses is a `RequestError` in one line; its limits bound time and memory of every
call.  Knows no sequences and no step.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flyweight.errors import RequestError
from flyweight.params.structured import NAME, StructuredOutputs
from flyweight.sampling.schema_validation import make_validator
from flyweight.sampling.sources import list_sources
from flyweight.validation.untrusted import one_line, shown
from flyweight.wire import U32

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

MIB = 1 << 20
# Items of a parser's row.  A schema takes 4 for each property that may come next; what an ambiguous
# grammar costs a token grows with their cube (400: 10 to 50 ms, 800: 60 to 300, of Qwen's 152k).
ROW_ITEMS, AMBIGUOUS_ROW_ITEMS = 20_000, 400
STATES = 32_000  # of a lexer, at most; up to 2 KB each
SYMBOLS = 200_000  # of a grammar
LONGEST = 300  # characters of a refusal
ROW = re.compile(r"row has (\d+) items; max is (\d+)")
ONE_OF = (
    "oneOf is supported where no value can match two of its branches: give each branch a required "
    "property with a const of its own, or use anyOf"
)
# The library's drawing of a regex: the regex itself, marks below, and what is wrong.
REGEX = re.compile(r"regex parse error:\n    (.*)\n(?:.*\n)*?error: ([^\n]*)")
DRAWING = re.compile(r"\n\n|\n *\d+ \||\n   ")  # of the lines around a place
AMBIGUOUS = "{}; a grammar that is less ambiguous, or left-recursive, has fewer"
REMEMBERED = 64  # answers
SOURCES = 8 * MIB  # characters of what was made ready for the grammar engine
# Of a compiler: a floor, and so many for each token (measured: 332 of Qwen's 152k, 371 of Llama 2's
# 32k, 2 MB for 2k).
LEAST_COMPILER, TOKEN_BYTES = MIB, 400
BREATH = 2e-7  # seconds a token for others, between two calls that hold the interpreter's lock


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The bytes each token adds to a text, the ids that represent none of their own (a grammar
    names them by their spelling), and those that end a sequence.  `size` ids have logits; `encode`
    cuts a text as the model is used to.
    """

    tokens: Sequence[bytes]
    special: frozenset[int]
    ends: frozenset[int]
    size: int
    encode: Callable[[str], Sequence[int]] | None = None


def byte_vocabulary(special: Sequence[bytes] = ()) -> GrammarVocabulary:
    """A token for each byte, and named ones: enough to say what a grammar means."""
    tokens = [*(bytes([i]) for i in range(256)), b"<end>", *special]
    return GrammarVocabulary(
        tokens, frozenset(range(256, len(tokens))), frozenset({256}), len(tokens)
    )


def make_limits(kind: str) -> "LLParserLimits":
    """What bounds a compilation, and each question to a matcher after it."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=AMBIGUOUS_ROW_ITEMS if kind == "grammar" else ROW_ITEMS,
        max_lexer_states=STATES,
        max_grammar_size=SYMBOLS,
        verbose_errors=False,
    )


class Compiler:
    """Makes matchers for one vocabulary.  Building one takes most of a second for a vocabulary of
    150k; twice a fifth of one of them nothing else can run in the process, so that of steps that go
    on meanwhile two are late, by that much each.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.words = -(-vocabulary.size // 32)
        self.ends = sorted(vocabulary.ends)
        whole = LLTokenizer(
            TokenizerWrapper(_Bytes(vocabulary)),
            n_vocab=vocabulary.size + (not vocabulary.ends),
            eos_token=sorted(vocabulary.ends) or [vocabulary.size],
            slices=[],
        )
        time.sleep(BREATH * vocabulary.size)
        self._tokenizer: LLTokenizer = whole.with_slices(LLTokenizer.general_slices())
        self._sources = _Sources()

    def compile(self, outputs: StructuredOutputs) -> "Matcher":
        """A matcher at the beginning of a text, which shares its lexer, and so what becomes of
        that, with none but its copies.  Raises `RequestError`.
        """
        from llguidance import LLMatcher

        bounds, problem = make_limits(outputs.kind), ""
        for text in self._sources.of(outputs):
            found = LLMatcher(self._tokenizer, text, log_level=0, limits=bounds)
            matcher = Matcher(found, self.words, self.ends)
            matcher.mask()  # the dearest one, and it stays in its lexer
            if not matcher.broken:
                self._sources.keep(outputs, text)
                return matcher
            problem = problem or matcher.broken
        raise RequestError(f": {problem}", f"{NAME}.{outputs.kind}", code="bad_constraint")


class _Sources:
    """Constraints as the grammar engine reads them: the newest that it could read."""

    def __init__(self) -> None:
        self._kept: OrderedDict[StructuredOutputs, str] = OrderedDict()
        self._size = 0

    def of(self, outputs: StructuredOutputs) -> Iterable[str]:
        """Raises `RequestError`."""
        text = self._kept.get(outputs)
        return list_sources(outputs) if text is None else [text]

    def keep(self, outputs: StructuredOutputs, text: str) -> None:
        self._size += len(text) - len(self._kept.pop(outputs, ""))
        self._kept[outputs] = text
        while self._size > SOURCES:
            self._size -= len(self._kept.popitem(last=False)[1])


def compiler_nbytes(tokens: int) -> int:
    """About what a compiler takes for a vocabulary of so many."""
    return LEAST_COMPILER + TOKEN_BYTES * tokens


class TrialCompiler:
    """Says whether a constraint can be kept to, without a model's vocabulary except for the special
    tokens, which a grammar may name; remembers its last answers.
    """

    def __init__(self, special: Callable[[], Sequence[bytes]]) -> None:
        self._special = special
        self._compiler: Compiler | None = None
        self._known: OrderedDict[StructuredOutputs, dict[str, Any]] = OrderedDict()

    def __call__(self, outputs: StructuredOutputs) -> None:
        """Raises `RequestError`."""
        answer = self._known.get(outputs)
        if answer is None:
            answer = self._known[outputs] = self._try(outputs)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        if answer:
            raise RequestError(**answer)

    def _try(self, outputs: StructuredOutputs) -> dict[str, Any]:
        """The data of its error; nothing where it can be kept to."""
        if self._compiler is None:
            self._compiler = Compiler(byte_vocabulary(self._special()))
        try:
            self._compiler.compile(outputs)
            if outputs.validated:
                make_validator(outputs)
        except RequestError as error:
            return error.data
        return {}


class Matcher:
    """Where one text stands in its grammar.  `broken` says why it can go on no more."""

    __slots__ = ("_ends", "_matcher", "_words", "broken")

    def __init__(self, matcher: "LLMatcher", words: int, ends: Sequence[int]) -> None:
        self._matcher, self._words, self._ends = matcher, words, ends
        self.broken = ""

    def copy(self) -> "Matcher":
        """Another text at the same place.  What one of them has the lexer grow by, all have."""
        return Matcher(self._matcher.deep_copy(), self._words, self._ends)

    @property
    def complete(self) -> bool:
        """Whether the text so far satisfies the grammar."""
        return bool(self._matcher.is_accepting())

    @property
    def over(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    def take(self, tokens: Sequence[int]) -> int:
        """Goes on by the tokens, up to the first that is refused: how many were taken."""
        if self.broken:
            return 0
        taken = int(self._matcher.try_consume_tokens(list(tokens)))
        self._look()
        return taken

    def back(self, count: int) -> None:
        """Takes the last `count` tokens back."""
        if count and not self.broken:
            self._matcher.rollback(count)
            self._look()

    def fits(self, tokens: Sequence[int]) -> int:
        """How many of the tokens it would take."""
        return 0 if self.broken else int(self._matcher.validate_tokens(list(tokens)))

    def mask(self, *, endless: bool = False) -> U32:
        """The tokens that may come next, a bit each: [words].  `endless`: no end of sequence while
        there is anything else.
        """
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        self._look()
        if endless:
            less = words.copy()
            for end in self._ends:
                less[end // 32] &= ~np.uint32(1 << end % 32)
            words = less if less.any() else words
        return words

    def _look(self) -> None:
        if self._matcher.is_error():
            self.broken = _describe_error(self._matcher.get_error(), self._matcher.stop_reason())


class _Bytes:
    """A vocabulary as the grammar engine needs it."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        ends = sorted(vocabulary.ends)
        missing = vocabulary.size - len(vocabulary.tokens)
        # An id without bytes can never be drawn; without an end there is one beyond all logits.
        self.tokens = [*vocabulary.tokens[: vocabulary.size], *[b""] * missing]
        self.tokens += [] if ends else [b"<end>"]
        self.eos_token_id = ends[0] if ends else vocabulary.size
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special | {self.eos_token_id})
        special = set(self.special_token_ids)
        self._ids = {text: i for i, text in enumerate(self.tokens) if text and i not in special}
        self._longest = max(map(len, self._ids), default=0)
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a text that has no choice left: of all ways to cut it, the one the model knows.
        Their bytes are the text's.
        """
        if self._encode is not None:
            ids = list(self._encode(text.decode("utf-8", "replace")))
            if b"".join(self.tokens[i] for i in ids) == text:
                return ids
        found, at = [], 0
        while at < len(text):
            ends = range(min(at + self._longest, len(text)), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), None)
            if end is None:  # the vocabulary lacks this byte
                break
            found.append(self._ids[text[at:end]])
            at = end
        return found


def _describe_error(error: str, reason: str = "") -> str:
    """A limit that was met, in our words; else the engine's on one line, without its drawing of the
    place and what it says of itself.
    """
    found = ROW.search(error)
    if found is not None:
        return AMBIGUOUS.format(
            f"{found[1]} possible continuations are open here; allowed: at most {found[2]}"
        )
    if "Too many items" in error or reason == "ParserTooComplex":
        return AMBIGUOUS.format("too many possible continuations are open here")
    if reason == "LexerTooComplex":
        return "a regex of it has too many states; shorter repetitions have fewer"
    if "NoExtensionBias" in error:
        return "no text satisfies it: a rule of it only leads back to itself"
    if "oneOf constraints" in error:
        return ONE_OF
    regex = REGEX.search(error)
    if regex is not None:
        return f"{shown(regex[1])} is not a supported regex: {one_line(regex[2], LONGEST)}"
    plain = error.replace("<non-verbose/>", "").removeprefix("Parser Error: ")
    plain = plain.replace("Unsatisfiable schema: ", "no value satisfies it: ")
    return one_line(DRAWING.split(plain)[0].strip(), LONGEST)
