"""A rank holds its own part of the weights, and no more at its peak while it loads."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from big_model import write_06b
from flyweight import LLM

LIMITS = {"memory_limit": "6GiB", "max_model_len": 512, "blocks": 32, "packed_cache": False}
LAYERS, VOCAB = 12, 8192  # about 110 MB of weights


def measure_peak(model: Path | str, tensor: int, pipeline: int) -> int:
    """Bytes that rank 1 held at most."""
    with LLM(
        model, threads=2, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **LIMITS
    ) as llm:
        close = llm.loaded.engine.on_close
        (child,) = close.func.__self__.children  # type: ignore[union-attr]
        status = Path(f"/proc/{child.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.M)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.long
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_a_rank_never_holds_the_weights_of_another(
    tmp_path: Path, tensor: int, pipeline: int
) -> None:
    """Beyond what a rank of a tiny model holds: Python, torch, and the loader's buffers."""
    path = write_06b(tmp_path / "model.gguf", layers=LAYERS, vocab=VOCAB)
    weights = path.stat().st_size
    own = measure_peak(path, tensor, pipeline) - measure_peak("stories", tensor, pipeline)
    assert own < 0.7 * weights
