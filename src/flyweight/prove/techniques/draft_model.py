"""A draft model: a smaller model of the package drafts for the larger one.

The prompts are openings of stories, as both models write stories.
"""

from flyweight.prove.drafting import DraftingTask
from flyweight.prove.engine_side import EngineWorkload, PromptLimits
from flyweight.prove.replay import TimedPrompt

PROMPT, ANSWER, DRAFT = 32, 160, 4
OPENINGS = (
    "Once upon a time, there was a little girl named {name}. She loved to play",
    "One day, {name} went to the park with a big red ball. The sun was",
    "{name} had a small dog. The dog liked to run in the garden, and {name}",
    "It was a cold day. {name} looked out of the window and saw",
)
NAMES = ("Lily", "Tom", "Anna", "Ben", "Mia", "Max", "Sara")


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """One opening of a story, another in every round."""
    number = round + 2
    name = NAMES[number % len(NAMES)]
    text = OPENINGS[number % len(OPENINGS)].format(name=name)
    tokens = limits.tokenizer.encode(text, parse_special=False)[: min(PROMPT, limits.length // 2)]
    return [TimedPrompt(tokens, min(ANSWER, limits.length - len(tokens)))]


STORY = DraftingTask(
    f"the opening of a story, {ANSWER} tokens out", EngineWorkload(make_prompts, PROMPT + ANSWER, 1)
)
TECHNIQUE = STORY.make_technique(
    "draft-model",
    "a draft model: a smaller model drafts for the larger one",
    f"method draft_model, model = stories-draft, num_speculative_tokens = {DRAFT}",
    {"method": "draft_model", "model": "stories-draft", "num_speculative_tokens": DRAFT},
)
