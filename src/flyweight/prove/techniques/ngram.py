"""Prompt lookup: what followed the same tokens earlier is verified in one step."""

from flyweight.prove.drafting import DraftingTask
from flyweight.prove.engine_side import EngineWorkload, PromptLimits
from flyweight.prove.replay import TimedPrompt

PROMPT, ANSWER, DRAFT = 4000, 96, 10
STEP = (
    "Step {number}: Open the valve. Wait for the green light. Close the valve. "
    "Write the number in the book.\n"
)


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """A manual whose steps differ in their number; another beginning in every round."""
    answer = limits.cut_answer(ANSWER)
    length, first = limits.length - answer, 100 * (round + 2)
    text = "".join(STEP.format(number=first + i) for i in range(length // 8 + 1))
    tokens = limits.tokenizer.encode(text, parse_special=False)
    return [TimedPrompt(tokens[:length], answer)]


MANUAL = DraftingTask(
    f"W7: a repetitive manual of {PROMPT:,} tokens, {ANSWER} tokens out",
    EngineWorkload(make_prompts, PROMPT + ANSWER, 1),
)
CONFIG = {"method": "ngram", "num_speculative_tokens": DRAFT}
TECHNIQUE = MANUAL.make_technique(
    "ngram",
    "prompt lookup: tokens that followed the same text before are drafted",
    f"method ngram, num_speculative_tokens = {DRAFT}",
    CONFIG,
    seed="1.06x",
)
