"""A loaded model with the windows of a text: what every evaluation begins with.

Invariant: the tokens are the model's own, and text that looks like a special token is text; the
beginning token, where the tokenizer adds one, begins every window.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import LoadListener, SilentListener, describe, find
from flyweight.driver.loop import Loop
from flyweight.eval.scoring import Report, score_windows
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.wire import F64

MOST_WINDOWS = 8  # at once: enough to fill every step


class EvalSession:
    """Loads the model with room for the windows.  `engine` are further settings by name."""

    def __init__(
        self,
        model: str,
        text: EvalText,
        plan: WindowPlan,
        engine: Mapping[str, Any],
        notify: LoadListener | None = None,
    ) -> None:
        fixed = {"max_num_seqs": MOST_WINDOWS, "enable_prefix_caching": False}
        settings = Settings.of(model=model, max_model_len=plan.context, **fixed, **engine)
        tell = notify or SilentListener()
        found = describe(find(settings, tell), settings.quantization)
        self.path, self.fingerprint = found.checkpoint.path, found.checkpoint.fingerprint
        self.vocab, tokenizer = found.spec.vocab, found.tokenizer
        found.checkpoint.close()
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        self.lead = () if bos is None else (bos,)
        tokens = tokenizer.encode(text.text, add_special=False, parse_special=False)
        self.windows = plan.cut(tokens, self.lead)  # refused before the weights are loaded
        self.loaded = build(settings, tell)
        self.loop = Loop(self.loaded.engine, self.loaded.limits, self.loaded.moving)

    def score(self, report: Report) -> list[F64]:
        """The log-probabilities of every window's new tokens."""
        return score_windows(self.loop, self.windows, report)
