"""Every type of GGUF over two stages of two ranks each: the greedy tokens of one process.

Ranks are threads; their stages and parts are cut as those of processes are.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_models import FAMILIES, INNER, LAYERS, VOCAB, write_model
from harness import batch, decoder, logits_of, memory
from rank_models import cut, load_stage

from flyweight.engine.runner import Model
from flyweight.errors import ConfigError
from flyweight.models.shards import Shard
from flyweight.models.stages import StageRange
from flyweight.ops.cpu import CpuOps
from flyweight.parallel.pipeline import PipelineStage
from flyweight.weights.formats import FORMATS
from flyweight.weights.gguf import READABLE
from flyweight.wire import F32
from thread_ranks import ThreadGroup, ThreadLink, ThreadRank, run_ranks

TENSOR, STAGES = 2, 2
PROMPT = np.array([3, 60, 17, 8, 8, 41, 0, 22, 13])
COUNT = 12  # tokens
TOTAL = len(PROMPT) + COUNT
# Of the dense types, of those with blocks of 32, 64 and 256, and of those with a codebook
QUICK = {"llama": ("bf16", "q4_0", "nvfp4", "q4_k", "iq2_xs"), "mixtral": ("q6_k",)}
CASES = [
    pytest.param(
        family, kind, id=f"{family}-{kind}",
        marks=[] if kind in QUICK.get(family, ()) else [pytest.mark.long],
    )
    for family in FAMILIES for kind in FORMATS
]  # fmt: skip


def decode_alone(path: Path, ops: CpuOps) -> tuple[list[int], F32]:
    """Greedy tokens, and the logits they were chosen from."""
    model = decoder(path, ops)
    kv = memory(model, TOTAL)
    return decode(model, kv, lambda token: token)


def decode(model: Any, kv: Any, share: Any) -> tuple[list[int], F32]:
    """`share` gives every rank the first one's token."""
    found: list[int] = []
    seen = []
    tokens, at = PROMPT, 0
    for _ in range(COUNT):
        step = batch([(tokens, at)], TOTAL, np.array([len(tokens) - 1]))
        row = logits_of(model, step, kv)
        at += len(tokens)
        found.append(share(int(row.argmax()) if row.shape[1] else -1))
        seen.append(row)
        tokens = np.array(found[-1:])
    return found, np.concatenate(seen)


class Ranks:
    """Four ranks as threads: rank r is rank r % 2 of stage r // 2."""

    def __init__(self, path: Path, activations: str) -> None:
        self.path, self.activations = path, activations
        self.stages = [ThreadGroup(TENSOR) for _ in range(STAGES)]
        self.links = [ThreadLink.connect(STAGES) for _ in range(TENSOR)]

    def decode(self, comm: ThreadRank) -> tuple[list[int], F32]:
        index, place = divmod(comm.rank, TENSOR)
        layers = range(index * LAYERS // STAGES, (index + 1) * LAYERS // STAGES)
        stage = StageRange(index, STAGES, layers)
        ops = CpuOps(1, None, self.activations)
        tensor = ThreadRank(self.stages[index], place)
        part = load_stage(self.path, tensor, stage, ops)
        link: Any = self.links[place][index]
        model: Model = PipelineStage(part, link)
        kv = memory(part, TOTAL)  # type: ignore[arg-type]
        return decode(model, kv, lambda token: comm.group.exchange(comm.rank, np.array(token))[0])


def check(path: Path, activations: str) -> tuple[F32, F32]:
    """Logits of the ranks and of one process, whose greedy tokens are equal."""
    expected, alone = decode_alone(path, CpuOps(1, None, activations))
    ranks = run_ranks(TENSOR * STAGES, Ranks(path, activations).decode)
    for tokens, _ in ranks:
        assert tokens == expected
    first, second, *others = (logits for _, logits in ranks)
    assert np.array_equal(first, second) and not any(other.size for other in others)
    return first, alone


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_greedy_tokens_are_those_of_one_process(tmp_path: Path, family: str, kind: str) -> None:
    """With float32 activations the logits differ by the order of sums alone; as models run, by
    what activations are rounded to.
    """
    path = write_model(tmp_path / "model.gguf", family, kind)
    found, alone = check(path, "f32")
    assert np.abs(found - alone).max() <= 1e-5 * np.abs(alone).max()
    check(path, "int8" if FORMATS[kind].quantised else "bf16")


def test_every_type_that_is_read_is_tried() -> None:
    assert {*READABLE.values()} == {*FORMATS}
    assert len(CASES) == len(FAMILIES) * len(READABLE)


def test_a_rank_without_whole_blocks_is_refused_with_the_sizes_that_fit(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "llama", "q4_k")
    with pytest.raises(ConfigError) as refused:
        cut(path, Shard(0, 4))
    assert str(refused.value) == (
        "tensor_parallel_size = 4: the heads of a rank are 128 columns, not whole blocks of 256; "
        "allowed: 1, 2"
    )


def test_parts_need_not_be_equal() -> None:
    """Of three blocks of 256, one rank has two."""
    assert [len(Shard(rank, TENSOR).take(INNER, 256)) for rank in range(TENSOR)] == [512, 256]
    assert VOCAB % TENSOR
