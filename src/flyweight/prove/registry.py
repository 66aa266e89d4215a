"""The techniques by their names.

Invariant: each is a module of `techniques` with a `TECHNIQUE`, imported when it is looked up; the
order is the order of `prove all`.
"""

from importlib import import_module

from flyweight.errors import ConfigError, nearest
from flyweight.prove.technique import Technique

NAMES = (  # those that take little time leave it to those that come later
    "window",
    "fragmentation",
    "batching",
    "kv-cache",
    "ngram",
    "ngram-prose",
    "suffix",
    "draft-model",
    "cascade",
    "medusa",
    "medusa-tree",
    "eagle",
    "eagle-tree",
    "eagle3",
    "mtp",
    "blocker",
    "beam",
    "isa",
    "packed",
    "attention",
    "rag",
    "few-shot",
    "weights",
    "kv-types",
    "threads",
    "tensor-parallel",
    "pipeline-parallel",
    "apc",
    "continuous",
    "stress",
)


def find_technique(name: str) -> Technique:
    """Raises `ConfigError` for a name that is none."""
    if name not in NAMES:
        raise ConfigError(
            f"is not a technique{nearest(name, NAMES)}", "NAME", value=name,
            allowed=", ".join(NAMES),
        )  # fmt: skip
    module = import_module(f"flyweight.prove.techniques.{name.replace('-', '_')}")
    found = module.TECHNIQUE
    assert isinstance(found, Technique) and found.name == name
    return found


def list_techniques() -> list[Technique]:
    return [find_technique(name) for name in NAMES]
