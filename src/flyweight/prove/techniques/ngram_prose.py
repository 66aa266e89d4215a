"""Prompt lookup on text that does not repeat: what drafts cost where few are accepted."""

from flyweight.prove.engine_side import EngineSide, EngineWorkload, PromptLimits
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.ngram import DRAFT, SETTINGS
from flyweight.text.sample_text import EVALUATION, read_sample

PROMPT, ANSWER = 384, 96
APART = 4096  # characters between the beginnings of two rounds


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """English text; another place of it in every round."""
    _, text = read_sample(EVALUATION)
    length, begin = limits.length - ANSWER, APART * (round + 1) % (len(text) // 2)
    tokens = limits.tokenizer.encode(text[begin : begin + 8 * length], parse_special=False)
    return [TimedPrompt(tokens[:length], ANSWER)]


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="ngram-prose",
    what="prompt lookup on text that does not repeat",
    workload=f"W9: {PROMPT} tokens of English help texts, {ANSWER} tokens out",
    off="no drafts",
    on=f"method ngram, num_speculative_tokens = {DRAFT}",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
