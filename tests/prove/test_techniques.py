"""The registry, and real techniques at small sizes on the model inside the package."""

from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.errors import ConfigError
from flyweight.prove import registry, techniques
from flyweight.prove.registry import NAMES, find_technique
from flyweight.prove.stand_in import write_long
from flyweight.prove.technique import METRICS, SIDES, ProveJob

STORIES = find(Settings.of())


def test_every_file_is_a_technique_and_every_name_has_one() -> None:
    folder = Path(techniques.__file__).parent
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py")} - {"--init--"}
    assert files == set(NAMES)
    for technique in registry.list_techniques():
        assert technique.metric in METRICS and technique.off != technique.on


def test_an_unknown_technique_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"NAME = 'acp' is not a technique \(did you mean 'apc'"):
        find_technique("acp")


def test_prefix_caching_changes_no_token(tmp_path: Path) -> None:
    apc = find_technique("apc")
    runs = []
    for name in SIDES:
        side = apc.open(ProveJob(STORIES, tmp_path), name)
        assert list(side.notes) == ["prompts are cut from 3,040 tokens to 512, the model's context"]
        runs.append(side.run(0, 0.05))
        side.close()
    off, on = runs
    assert off.work == on.work == (4, 4 * (512 - 16), 4 * 16)
    assert off.answers == on.answers and len(on.ttfts) == 4 and len(on.itls) == 4 * 15


def test_the_long_stand_in_is_the_model_inside_with_a_longer_context(tmp_path: Path) -> None:
    made = describe(write_long(tmp_path).path)
    inside = describe(STORIES)
    assert made.spec.context == 8192 and inside.spec.context == 512
    assert made.spec.layers == inside.spec.layers
    assert made.checkpoint.tensors == inside.checkpoint.tensors
