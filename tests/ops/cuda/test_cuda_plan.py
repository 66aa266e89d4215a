"""What is decided before a GPU computes: refusals, the effective settings, memory of attention."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from op_cases import paged

from flyweight.backends import choose_backend
from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.ops.cuda import CudaOps
from flyweight.ops.cuda.attention import make_kv_layer, plan_launch
from flyweight.ops.cuda.device import find_device, read_memory
from flyweight.ops.cuda.step import ROWS, FixedColumns
from flyweight.plan.step import count_gpu_records
from flyweight.spec import KVGroup
from flyweight.wire import Batch


def test_a_type_of_kv_is_refused_before_loading(device: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_backend(Settings(backend="cuda", kv_cache_dtype="int4"), 1)
    assert str(refused.value) == (
        "kv_cache_dtype = 'int4' is not stored on a GPU; allowed: bf16, f16, f32, int8, fp8_e4m3, "
        "fp8_e5m2; nearest valid: int8"
    )


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("is_available", True), ("current_device", 0), ("get_device_capability", (7, 5)),
        ("get_device_name", "Tesla T4"),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    with pytest.raises(ConfigError) as refused:
        find_device()
    assert str(refused.value) == (
        "backend = 'cuda' needs a GPU of compute capability 8.0 or later; Tesla T4 has 7.5; "
        "nearest valid: cpu"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert find_device() == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("given", "computed"), [("int8", "bf16"), ("bf16", "bf16"), ("f32", "f32")]
)
def test_activations(device: str, given: str, computed: str) -> None:
    ops = choose_backend(Settings(backend="cuda", activations=given), 1)
    assert isinstance(ops, CudaOps) and ops.activations == computed


@pytest.mark.parametrize(
    "heads, kv_heads, dim", [(32, 8, 128), (16, 1, 512), (7, 1, 64), (9, 3, 48)]
)
def test_memory_of_attention_is_planned(device: str, heads: int, kv_heads: int, dim: int) -> None:
    """Steps of any shape keep at most the planned results of splits."""
    group = KVGroup(heads=kv_heads, k_dim=dim, v_dim=dim)
    kv = make_kv_layer(group, 1, 16, "bf16", torch.device(device))
    layer: Any = SimpleNamespace(heads=heads, kv=group)
    counts, widths = (1, 2, 5, 60, 64, 200, 512, 4096), (256, 1024, 4096, 1 << 17)
    for most, sequences, width in itertools.product(counts, (1, 5, 16, 449), widths):
        tokens = most * sequences
        decode = most == 1
        rows = next((n for n in ROWS if n >= tokens), tokens) if decode else tokens
        batch: Any = SimpleNamespace(
            most=most, decode=decode, longest=width, tables=np.zeros((sequences, 1))
        )
        plan = plan_launch(kv, batch, rows, heads // kv_heads)
        if plan.lanes > 1:
            needed = 4 * rows * heads * plan.splits * (dim + 2)
            assert needed <= count_gpu_records(layer, tokens, sequences, width)


def test_a_buffer_is_filled_when_it_was_copied() -> None:
    """Also where the step before samples nothing, so that nothing has waited for it."""
    columns = FixedColumns(1, 16, 8, torch.device("cpu"))
    seen: list[tuple[str, int]] = []

    class Event:
        def synchronize(self) -> None:
            seen.append(("wait", columns.values[0]))

        def record(self) -> None:
            seen.append(("record", columns.values[0]))

    columns.copied = Event()  # type: ignore[assignment]
    memory = paged(np.random.default_rng(3), [(3, 1)], 8)
    kv = make_kv_layer(KVGroup(1, 8, 8), 1, 8, "bf16", torch.device("cpu"))
    batches: list[Batch] = [memory.step([(3, 1)]) for _ in range(2)]
    for token, batch in enumerate(batches):
        batch.tokens[:] = token + 7
        columns.fill(batch, kv)
    assert [what for what, _ in seen] == ["wait", "record"] * 2
    assert [token for _, token in seen[1:]] == [7, 7, 8]


def test_what_torch_keeps_of_a_closed_model_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50 if given_back else 10, 100))
    assert read_memory(torch.device("cuda")) == (100, 50)
    assert read_memory(torch.device("cpu")) is None
