"""A model with the windows of a text: what every evaluation begins with.

Invariant: the tokens are the model's own, and text that looks like a special token is text; the
beginning token, where the tokenizer adds one, begins every window.  Weights are held only while
windows are scored.
"""

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import LoadListener, SilentListener, describe, find
from flyweight.driver.loop import Loop
from flyweight.eval.scoring import LogitsHook, Report, Take, check_finite, score_windows
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.wire import F32, F64

MOST_WINDOWS = 8  # at once: enough to fill every step


@dataclass(frozen=True, slots=True)
class ScoredText:
    """The log-probabilities of every window's new tokens, and the seconds they took."""

    logprobs: list[F64]
    seconds: float


class EvalListener(LoadListener, Protocol):
    """Receives the progress of a measurement."""

    def round(self, test: str, done: int, total: int) -> None: ...


class EvalSession:
    """A model that is found and a text that is cut into its windows; `engine` are further settings
    by name.
    """

    def __init__(
        self,
        model: str,
        text: EvalText,
        plan: WindowPlan,
        engine: Mapping[str, Any],
        notify: LoadListener | None = None,
    ) -> None:
        fixed = {"max_num_seqs": MOST_WINDOWS, "enable_prefix_caching": False}
        self.settings = Settings.of(model=model, max_model_len=plan.context, **fixed, **engine)
        self.notify = notify or SilentListener()
        found = describe(find(self.settings, self.notify), self.settings.quantization)
        self.path, self.fingerprint = found.checkpoint.path, found.checkpoint.fingerprint
        self.vocab, self.tokenizer = found.spec.vocab, found.tokenizer
        self.longest = found.spec.context
        found.checkpoint.close()
        bos = self.tokenizer.bos_id if self.tokenizer.add_bos else None
        self.lead = () if bos is None else (bos,)
        tokens = self.tokenizer.encode(text.text, add_special=False, parse_special=False)
        self.windows = plan.cut(tokens, self.lead)

    @property
    def tokens(self) -> int:
        """How many are scored."""
        return sum(window.new for window in self.windows)

    @property
    def digest(self) -> str:
        """Of the windows' tokens, the same for two models that score the same ones."""
        ids = [(*window.tokens, window.new) for window in self.windows]
        return sha256(repr(ids).encode()).hexdigest()[:16]

    def score(self, report: Report, take: Take | None = None) -> ScoredText:
        """Loads the model and scores the windows; `take` is given the logits of scored tokens.
        Raises `ConfigError` where they are not finite.
        """
        model = str(self.path)
        loaded = build(self.settings, self.notify)
        loop = Loop(loaded.engine, loaded.limits, loaded.moving)
        hook = None if take is None else LogitsHook(self.windows, partial(_check, model, take))
        if hook is not None:
            loaded.engine.add_hook(hook)

        def check(done: int, total: int) -> None:
            if hook is not None:
                hook.check()
            report(done, total)

        began = time.monotonic()
        try:
            logprobs = score_windows(loop, self.windows, check, model)
        finally:
            loop.close()
        seconds = time.monotonic() - began
        del loaded, loop
        gc.collect()  # its parts name each other, and the next model needs the memory now
        return ScoredText(logprobs, seconds)


def _check(model: str, take: Take, first: int, logits: F32) -> None:
    """Gives `take` rows without NaN, each with a most likely token."""
    check_finite(model, logits.max(axis=-1))
    take(first, logits)
