"""The layer that some checkpoints carry after the last one, which predicts one token further than
the model does (multi-token prediction: DeepSeek-V3, 2024).

It is a decoder layer like the last, between a matrix that joins the normed embedding of a token to
the normed state before it, in this order, and a norm.  Embedding and output matrix are the
model's, as the publisher defines; the file's copies of them are not read.

Invariant: a plan names tensors that are there.  Of several such layers, it is the first's.
"""

from dataclasses import dataclass, replace

from flyweight.errors import ConfigError
from flyweight.models.config import Config, read_integer
from flyweight.models.plans import plan_linear, plan_vector
from flyweight.models.registry import find_family
from flyweight.spec import Files, ModelSpec, WeightPlan

COUNT = "num_nextn_predict_layers"
INSTEAD = "nearest valid: ngram, or eagle with heads from `flyweight train-heads`"


@dataclass(frozen=True, slots=True)
class PredictorPlan:
    """The layer as a model of one: slots of `layers.0.`, `enorm`, `hnorm`, `join` and `norm`."""

    spec: ModelSpec
    weights: WeightPlan


def plan_predictor(base: ModelSpec, config: Config, files: Files, setting: str) -> PredictorPlan:
    """The layer of a model whose config.json is `config`.  Raises `ConfigError`, which names the
    `setting` that wants it, where the model has none, and `CheckpointError`.
    """
    family, last = find_family(config), len(base.layers)
    count = read_integer(config, COUNT, 0, least=0) if family.predicts else 0
    if not count:
        raise ConfigError(
            f"needs a model that carries a prediction layer; this one ({base.family}) has none",
            setting, value="mtp", hint=INSTEAD,
        )  # fmt: skip
    at = f"model.layers.{last}."
    if f"{at}eh_proj.weight" not in files.names:
        raise ConfigError(
            f"needs the model's prediction layer; config.json has {COUNT} = {count}, but the files "
            f"have no {at}eh_proj.weight",
            setting, value="mtp", hint=INSTEAD,
        )  # fmt: skip
    layer = family.read_spec({**config, "num_hidden_layers": last + 1}).layers[-1]
    grown, own = replace(base, layers=(*base.layers, layer)), f"layers.{last}."
    slots = [
        replace(slot, name="layers.0." + slot.name.removeprefix(own))
        for slot in family.plan(grown, files).slots
        if slot.name.startswith(own)
    ]
    hidden = base.hidden
    slots += [
        plan_vector("enorm", f"{at}enorm.weight", hidden),
        plan_vector("hnorm", f"{at}hnorm.weight", hidden),
        plan_linear("join", 2 * hidden, ((f"{at}eh_proj", hidden),)),
        plan_vector("norm", f"{at}shared_head.norm.weight", hidden),
    ]
    return PredictorPlan(replace(base, layers=(layer,)), WeightPlan(tuple(slots), ("*",)))
