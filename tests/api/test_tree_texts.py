"""Trees of drafts on the model inside: the texts of many prompts are those without drafts."""

from collections.abc import Sequence
from typing import Any

from flyweight import LLM, SamplingParams
from flyweight.draft.drafter import DraftRequest
from tree_drafter import TreeDrafter

STORY = "Once upon a time there was a little dog who wanted to find the big red ball"
PROMPTS, AT_LENGTH = 60, 240
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "presence_penalty": 0.5},
    {"temperature": 0.7, "repetition_penalty": 1.2, "logprobs": 2},
]


def make_prompts(count: int) -> list[str]:
    """Each another one, of 3 to 14 words."""
    words = STORY.split()
    return [
        " ".join(words[(i + j * (1 + i % 5)) % len(words)] for j in range(3 + i % 12)) + f" {i}"
        for i in range(count)
    ]


def test_many_texts_are_those_without_drafts(at_length: bool) -> None:
    prompts = make_prompts(AT_LENGTH if at_length else PROMPTS)
    params = [
        SamplingParams(max_tokens=24, seed=i, **KINDS[i % len(KINDS)]) for i in range(len(prompts))
    ]
    settings: dict[str, Any] = {"threads": 2, "max_model_len": 96, "max_num_seqs": 6}
    plain = LLM(**settings).generate(prompts, params, use_tqdm=False)
    known = {tuple(one.prompt_token_ids): one.outputs[0].token_ids for one in plain}
    assert len(known) == len(prompts)
    lengths = sorted({len(prompt) for prompt in known})

    def find_right(ask: DraftRequest) -> Sequence[int]:
        begun = [tuple(ask.tokens[:n]) for n in lengths if n < len(ask.tokens)]
        (prompt,) = [p for p in begun if p in known and agrees(ask, p)]
        return known[prompt][len(ask.tokens) - len(prompt) :]

    def agrees(ask: DraftRequest, prompt: tuple[int, ...]) -> bool:
        done = tuple(ask.tokens[len(prompt) :])
        return tuple(known[prompt][: len(done)]) == done

    for seqs, tokens in ((6, 9), (1, 4), (16, 15)):
        more = {"max_num_seqs": seqs, "draft_tokens": tokens}
        guessing = LLM(**{**settings, **more})
        engine = guessing.loaded.engine
        engine.drafts.calls.use(TreeDrafter(find_right, range(200, 260)))
        found = guessing.generate(prompts, params, use_tqdm=False)
        for one, other in zip(plain, found, strict=True):
            assert one.outputs == other.outputs, one.prompt
        assert engine.metrics.accepted > 3 * len(prompts)
        assert engine.metrics.proposed > engine.metrics.accepted
