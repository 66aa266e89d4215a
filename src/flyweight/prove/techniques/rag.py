"""A RAG template: the context is packed into a token budget, and instruction and answer are short.

The tokens are those of the course's example: without a template 50 of the question, 1,000 of
context, 200 of instruction and 800 of answer, with it 600 of context, 50 of instruction and 300 of
answer, and the question, which the course's sum of 950 leaves out.  How long an answer is, is set,
as in the course: no model decides it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyweight.prompts.rag import RagTemplate
from flyweight.prove.engine_side import EngineSide, EngineWorkload, PromptLimits, count_share
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import Measurement, ProveJob, Technique
from flyweight.text.sample_text import EVALUATION, read_sample

CONTEXT, BUDGET = 1000, 600  # tokens
WORDY, QUESTION = 200, 50
REQUESTS, SEQS = 4, 1
LEAST = 512  # tokens of context: with fewer, the budget may hold no passage
PASSAGE = 24  # words
WORDS = (
    "Please read everything above with great care before you begin to write, think about all of "
    "its parts, and then give a complete and detailed reply that covers history, current use, "
    "examples, and whatever else may be of interest to the reader. "
) * 8
ASKED = (
    "Which of the objects, statements and rules that are described here would have to be changed "
    "first, and what would the consequences be for programs that depend on their behaviour today? "
) * 4
SEED_INSTRUCTION = (
    'Answer based on context. If not in context, say "{not_found}". Format: 1-2 sentences max.'
)


@dataclass(frozen=True, slots=True)
class RagLengths:
    """Tokens of a request's parts: the course's, or a `scale` of them in a shorter context."""

    scale: float

    def count(self, tokens: int) -> int:
        return max(1, int(tokens * self.scale))


ANSWERS = {"off": 800, "on": 300}
LONGEST = QUESTION + CONTEXT + WORDY + ANSWERS["off"]


def draw_passages(limits: PromptLimits, number: int, tokens: int) -> list[str]:
    """Passages of so many tokens, of another place in the text for every request."""
    words = read_sample(EVALUATION)[1].split()
    start = number * 977 % len(words)
    words = words[start:] + words[:start]
    encode, found, total = limits.tokenizer.encode, list[str](), 0
    while total < tokens:
        at = len(found) * PASSAGE % len(words)
        found.append(" ".join(words[at : at + PASSAGE]))
        total += len(encode(found[-1], add_special=False))
    return found


class RagSide(EngineSide):
    """The requests of a side, whose tokens are its figures."""

    def __init__(self, job: ProveJob, side: str) -> None:
        self.side = side
        super().__init__(job, EngineWorkload(self.make_prompts, LONGEST, SEQS, LEAST), {})

    def make_prompts(self, limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
        lengths = RagLengths(min(1.0, limits.length / LONGEST))
        count = count_share(REQUESTS, share)
        answer = lengths.count(ANSWERS[self.side])
        prompts = []
        for i in range(count):
            passages = draw_passages(limits, (round + 1) * REQUESTS + i, lengths.count(CONTEXT))
            make = self._ask_plainly if self.side == "off" else self._use_template
            prompts.append(TimedPrompt(make(limits, lengths, passages), answer))
        return prompts

    def _ask_plainly(
        self, limits: PromptLimits, lengths: RagLengths, passages: Sequence[str]
    ) -> list[int]:
        """Everything that was found, and a wordy instruction."""
        encode = limits.tokenizer.encode
        context = encode("\n\n".join(passages))[: lengths.count(CONTEXT)]
        wordy = encode(WORDS, add_special=False)[: lengths.count(WORDY)]
        return [*context, *wordy, *self._encode_question(limits, lengths)]

    def _encode_question(self, limits: PromptLimits, lengths: RagLengths) -> list[int]:
        return limits.tokenizer.encode(ASKED, add_special=False)[: lengths.count(QUESTION)]

    def _use_template(
        self, limits: PromptLimits, lengths: RagLengths, passages: Sequence[str]
    ) -> list[int]:
        """The same question on what fits the budget."""
        question = limits.tokenizer.decode(self._encode_question(limits, lengths))
        made = RagTemplate(SEED_INSTRUCTION).make(
            limits.tokenizer, question, passages, lengths.count(BUDGET)
        )
        return limits.tokenizer.encode(made.text)

    def run(self, round: int, share: float) -> Measurement:
        """Answers to different prompts are not compared."""
        found = super().run(round, share)
        own = {
            "tokens of a prompt": found.prompt_tokens / found.requests,
            "tokens of an answer": found.output_tokens / found.requests,
        }
        return replace(found, answers=(), figures={**own, **found.figures})


TECHNIQUE = Technique(
    name="rag",
    what="RAG template: context packed to a token budget, short instruction and answer",
    workload=f"{REQUESTS} questions, one after the other, on {CONTEXT:,} tokens of passages each",
    off=f"all passages, {WORDY} tokens of instruction, answers of {ANSWERS['off']} tokens",
    on=f"RagTemplate with a budget of {BUDGET} tokens, answers of {ANSWERS['on']} tokens",
    metric="throughput",
    open=RagSide,
    seed="4.3x",
    exact=False,
    stand_in="long",
    same=("requests",),
)
