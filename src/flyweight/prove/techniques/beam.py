"""Beam search: beams share the blocks of what they have in common.

Off is the same search by a client: each beam of each step is a prompt of its own, which the engine
computes from its beginning.
"""

import time
from collections.abc import Sequence
from itertools import count

from flyweight.build import LoadedModel
from flyweight.prove.engine_side import (
    EngineSide,
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import Answer, Measurement, ProveJob, Side, Technique
from flyweight.sampling.beam import BeamState, Row, Rules, advance
from flyweight.types import Request, SamplingParams

REQUESTS, PROMPT, ANSWER, WIDTH = 4, 256, 16, 4
ONE_TOKEN = SamplingParams(temperature=0, ignore_eos=True, logprobs=WIDTH)


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER, WIDTH)


class ClientSearch(EngineSide):
    """Searches with requests of one token, one search after another."""

    def replay(self, prompts: Sequence[TimedPrompt]) -> Measurement:
        start = time.perf_counter()
        answers = [search(self.loaded, tuple(prompt.tokens)) for prompt in prompts]
        seconds = time.perf_counter() - start
        tokens = sum(len(prompt.tokens) for prompt in prompts)
        written = sum(map(len, answers))
        return Measurement(seconds, len(prompts), tokens, written, answers=tuple(answers))


def search(loaded: LoadedModel, prompt: Answer) -> Answer:
    """The tokens of all hypotheses, best first."""
    state, rules, ids = BeamState(), Rules(WIDTH, ANSWER), count()
    while not state.done:
        rows: dict[str, Row] = {}
        for beam in state.beams:
            id = str(next(ids))
            rows[id] = (), ()
            loaded.engine.add(Request(id, prompt + beam.tokens, ONE_TOKEN, max_tokens=1))
        while loaded.engine.busy:
            for event in loaded.engine.step():
                best = event.logprobs[0]
                rows[event.id] = best.top_ids, best.top
        state = advance(state, list(rows.values()), rules)
    return tuple(token for one in state.ended for token in one.tokens)


def open_side(job: ProveJob, side: str) -> Side:
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, WIDTH)
    if side == "on":
        return EngineSide(job, workload, {})
    return ClientSearch(job, workload, {"enable_prefix_caching": False})


TECHNIQUE = Technique(
    name="beam",
    what="beam search: beams share blocks of K/V, and fork them where they differ",
    workload=f"{REQUESTS} searches of {WIDTH} beams, {PROMPT} tokens in and {ANSWER} out",
    off="every beam of every step is a prompt of its own, without prefix caching",
    on="the engine's beam search",
    metric="throughput",
    open=open_side,
)
