"""Prompt lookup on text that does not repeat: what drafts cost where few are accepted."""

from flyweight.prove.drafting import DraftingTask
from flyweight.prove.engine_side import EngineWorkload, PromptLimits
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.techniques.ngram import CONFIG, DRAFT
from flyweight.text.sample_text import EVALUATION, read_sample

PROMPT, ANSWER = 384, 96
APART = 4096  # characters between the beginnings of two rounds


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """English text; another place of it in every round."""
    _, text = read_sample(EVALUATION)
    answer = limits.cut_answer(ANSWER)
    length, begin = limits.length - answer, APART * (round + 1) % (len(text) // 2)
    tokens = limits.tokenizer.encode(text[begin : begin + 8 * length], parse_special=False)
    return [TimedPrompt(tokens[:length], answer)]


PROSE = DraftingTask(
    f"W9: {PROMPT} tokens of English help texts, {ANSWER} tokens out",
    EngineWorkload(make_prompts, PROMPT + ANSWER, 1),
)
TECHNIQUE = PROSE.make_technique(
    "ngram-prose",
    "prompt lookup on text that does not repeat",
    f"method ngram, num_speculative_tokens = {DRAFT}",
    CONFIG,
)
