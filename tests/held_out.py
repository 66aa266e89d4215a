"""The price of quantising a real model, on stories that neither its training nor the calibration
has read: for the bars of tests/quantize/test_bars.py and the tables of bench/quantization.py.

The stories are those of `text-tinystories`, which both real models are made for.  The last 5 %
were held out of the training of the package's model (tools/train_demo_model); what that of
FLYWEIGHT_DATA has read is not known.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyweight.config import Settings
from flyweight.describe import describe
from flyweight.eval import divergence
from flyweight.eval.session import EvalSession
from flyweight.eval.store import StoreReader
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.quantization import prepare_model
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.ggml.recipes import find_recipe
from flyweight.quantize.gguf_job import make_target
from flyweight.quantize.job import QuantizeJob
from flyweight.quantize.make import cut_windows, make_backends
from flyweight.quantize.options import QuantizeOptions

CONTEXT = 256
SEPARATOR = "<|endoftext|>\n"
THREADS: Mapping[str, Any] = {"threads": 1}
ENGINE: Mapping[str, Any] = {"memory_limit": "8GiB", **THREADS}


def split_stories(data: Path, out: Path) -> tuple[Path, Path]:
    """Writes calibration.txt, with 95 of 100 stories, and held-out.txt, with the others."""
    text = (data / "text-tinystories" / "tinystories-excerpt.txt").read_text("utf-8")
    stories = text.split(SEPARATOR)
    cut = len(stories) * 95 // 100
    files = out / "calibration.txt", out / "held-out.txt"
    for file, part in zip(files, (stories[:cut], stories[cut:]), strict=True):
        file.write_text("".join(part), "utf-8")
    return files


@dataclass(frozen=True, slots=True)
class PriceTest:
    """A model's folder in float32; files of it are made in `out`, and scored on `tokens`."""

    full: Path
    calibration: Path
    text: Path
    out: Path
    tokens: int = 10_000

    def quantize(self, name: str, **options: Any) -> Path:
        """A file or folder made as `flyweight quantize` makes it."""
        made, path = QuantizeOptions(**options), self.out / name
        calibration = str(self.calibration) if made.takes_calibration else None
        prepared = prepare_model(str(self.full), str(path), made, calibration, THREADS)
        return self._run(prepared.job, path)

    def quantize_uniformly(self, kind: str, **options: Any) -> Path:
        """A GGUF file with all matrices in one type, the embedding included."""
        made = QuantizeOptions(type=kind, weighed=True, **options)
        found, path = describe(self.full), self.out / f"uniform-{kind}.gguf"
        recipe = find_recipe(kind)
        target = make_target(found, recipe, True)
        names = [name for name, own in target.assignment.precision.items() if own.quantised]
        target = make_target(found, recipe, True, dict.fromkeys(names, kind.lower()))
        windows = cut_windows(found, made, CalibrationText.read(self.calibration))
        return self._run(QuantizeJob(found, made, target, windows), path)

    def measure(self, model: Path) -> float:
        """Mean KL(full || model) in nats a token, with the usual settings of the engine."""
        logits = self.out / "full.logits"
        if not logits.exists():
            full = self._open(self.full)
            text, plan = EvalText.read(str(self.text)), WindowPlan(CONTEXT, None, self.tokens)
            header = divergence.make_header(full, text, plan)
            divergence.record(full, header, logits, lambda done, total: None)
        with closing(StoreReader(logits)) as reader:
            found = divergence.compare(self._open(model), reader, lambda done, total: None)
        return found.mean.mean

    def _open(self, model: Path) -> EvalSession:
        text, plan = EvalText.read(str(self.text)), WindowPlan(CONTEXT, None, self.tokens)
        return EvalSession(str(model), text, plan, ENGINE)

    def _run(self, job: QuantizeJob, path: Path) -> Path:
        backends = make_backends(Settings.of(model=str(self.full), **THREADS), job.found, 1)
        job.run(path, backends, lambda stage, done, total: None)
        return path
