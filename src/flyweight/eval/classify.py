"""Classifies labelled texts without and with examples in the prompt, and compares the two.

Invariant: both prompts of a text run one after the other, in turn the one and the other first, so
that the times are taken under the same conditions; each text is classified on its own.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from flyweight.errors import ConfigError, EngineError
from flyweight.eval.labelled import ClassifyPlan
from flyweight.eval.proportions import ShareInterval, compare_paired, make_wilson
from flyweight.eval.session import EvalListener
from flyweight.eval.tasks import score_continuations
from flyweight.eval.windows import Window
from flyweight.llm import LLM
from flyweight.params.structured import StructuredOutputs
from flyweight.types import SamplingParams

ENOUGH = 10  # samples; fewer say next to nothing
Method = Literal["likelihood", "choice"]
METHODS: tuple[Method, ...] = ("likelihood", "choice")
Classify = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ShotResult:
    """What was found with `shots` examples: the label of each sample, its seconds, and the tokens
    of its prompt.
    """

    shots: int
    found: tuple[str, ...]
    right: tuple[bool, ...]
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def accuracy(self) -> ShareInterval:
        return make_wilson(sum(self.right), len(self.right))

    @property
    def ms(self) -> float:
        """Of the median text."""
        return 1000 * median(self.seconds)


@dataclass(frozen=True, slots=True)
class Classification:
    """The samples without examples, and with; the same where no examples were requested (None)."""

    zero: ShotResult
    few: ShotResult | None

    @property
    def difference(self) -> ShareInterval | None:
        """Of the accuracies, on the same samples."""
        if self.few is None:
            return None
        pairs = list(zip(self.zero.right, self.few.right, strict=True))
        gained, lost = pairs.count((False, True)), pairs.count((True, False))
        return compare_paired(gained, lost, len(pairs))

    @property
    def time_ratio(self) -> float | None:
        """The median over samples of the time with examples to that without."""
        if self.few is None:
            return None
        pairs = zip(self.few.seconds, self.zero.seconds, strict=True)
        return median(few / zero for few, zero in pairs)


def make_classifier(llm: LLM, labels: tuple[str, ...], method: Method) -> Classify:
    """From a prompt to the likeliest label, or to the one that is written when no other text is
    allowed.
    """
    if method == "choice":
        form = StructuredOutputs(choice=[f" {label}" for label in labels])
        params = SamplingParams(temperature=0, max_tokens=256, structured_outputs=form)

        def write(prompt: str) -> str:
            (output,) = llm.generate(prompt, params, use_tqdm=False)
            answer = output.outputs[0].text.removeprefix(" ")
            if answer not in labels:
                raise EngineError(f"an answer ended with {output.outputs[0].finish_reason}")
            return answer

        return write

    def score(prompt: str) -> str:
        encode = llm.tokenizer.encode
        begun = len(encode(prompt))
        windows = []
        for label in labels:
            whole = encode(f"{prompt} {label}")
            windows.append(Window(tuple(whole), max(1, len(whole) - begun)))
        scored = score_continuations(llm, windows, lambda done, total: None)
        best = max(range(len(labels)), key=lambda i: scored[i].total)
        return labels[best]

    return score


def classify(llm: LLM, plan: ClassifyPlan, method: Method, tell: EvalListener) -> Classification:
    """Raises `ConfigError` where a prompt is too long."""
    sides = (False, True) if plan.shots else (False,)
    prompts = {
        side: [plan.make_prompt(i, examples=side) for i in range(len(plan.samples))]
        for side in sides
    }
    tokens = {side: count_prompt_tokens(llm, plan, prompts[side], side) for side in sides}
    run = make_classifier(llm, plan.labels, method)
    for side in sides:
        run(prompts[side][0])  # the first pass over the weights is no text's own
    found: dict[bool, list[str]] = {side: [] for side in sides}
    seconds: dict[bool, list[float]] = {side: [] for side in sides}
    for i in range(len(plan.samples)):
        tell.round("classifying", i, len(plan.samples))
        for side in sides if i % 2 else sides[::-1]:
            began = time.perf_counter()
            found[side].append(run(prompts[side][i]))
            seconds[side].append(time.perf_counter() - began)
    tell.round("classifying", len(plan.samples), len(plan.samples))
    results = [
        ShotResult(
            plan.shots if side else 0,
            tuple(found[side]),
            tuple(a == s.label for a, s in zip(found[side], plan.samples, strict=True)),
            tuple(seconds[side]),
            tokens[side],
        )
        for side in sides
    ]
    return Classification(results[0], results[1] if len(results) > 1 else None)


def count_prompt_tokens(
    llm: LLM, plan: ClassifyPlan, prompts: list[str], examples: bool
) -> tuple[int, ...]:
    """The tokens of each prompt, which leave room for every label."""
    encode = llm.tokenizer.encode
    most = llm.loaded.limits.max_model_len - 1
    counts = []
    for sample, prompt in zip(plan.samples, prompts, strict=True):
        longest = max(len(encode(f"{prompt} {label}")) for label in plan.labels)
        if longest > most:
            hint = "fewer shots, or a larger max_model_len" if examples else "a shorter text"
            raise ConfigError(
                f"has {longest} tokens with its label", f"{sample.where}: prompt",
                allowed=f"up to {most}", hint=f"give {hint}",
            )  # fmt: skip
        counts.append(len(encode(prompt)))
    return tuple(counts)


def run_classification(
    model: str, plan: ClassifyPlan, method: Method, engine: Mapping[str, Any], tell: EvalListener
) -> Classification:
    """Loads the model and classifies."""
    with LLM(model, notify=tell, **engine) as llm:
        return classify(llm, plan, method, tell)
