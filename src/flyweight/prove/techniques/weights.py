"""Weight quantisation: a token reads a quarter of the bytes."""

from pathlib import Path

from flyweight.describe import describe
from flyweight.prove.bounded_side import BoundedSide
from flyweight.prove.engine_side import (
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique
from flyweight.quantization import Evaluation, prepare_model, run_prepared
from flyweight.quantize.assignment import list_quantised
from flyweight.quantize.options import QuantizeOptions

REQUESTS, PROMPT, ANSWER = 4, 32, 48
TYPES = {"off": "BF16", "on": "Q4_0"}


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


def open_side(job: ProveJob, side: str) -> BoundedSide:
    """A model that is quantised already is the side `on` as it is."""
    model = job.model
    if is_quantised(model) == (side == "off"):
        model = make_file(model, job.folder, TYPES[side])
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, 1)
    return BoundedSide(ProveJob(model, job.folder, job.threads), workload, {})


def is_quantised(model: Path) -> bool:
    found = describe(model)
    try:
        return bool(list_quantised(found.checkpoint, found.plan))
    finally:
        found.checkpoint.close()


def make_file(model: Path, folder: Path, kind: str) -> Path:
    """The model in a type of GGUF's, made once."""
    out = folder / f"{kind}.gguf"
    if not out.exists():
        options = QuantizeOptions(type=kind, format="gguf", requantize=True)
        run_prepared(prepare_model(str(model), str(out), options), out, Evaluation(tokens=0))
    return out


TECHNIQUE = Technique(
    name="weights",
    what="weight quantisation: fewer bytes are read for a token",
    workload=f"{REQUESTS} requests after one another, {PROMPT} tokens in and {ANSWER} out",
    off="bfloat16: the model as it is, or dequantised by `flyweight quantize --type BF16`",
    on="Q4_0 made by `flyweight quantize --type Q4_0`, or the quantised model as it is",
    metric="itl",
    open=open_side,
    exact=False,
    stand_in="wide",
)
