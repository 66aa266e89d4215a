"""A prompt's steps, op by op, on the model inside the package, with costs worked out by hand.

Its shape: 6 layers, 192 wide, inner 512, 6 query and 2 K/V heads of 32, vocabulary 2,048; matrices
in q8_0, 34 bytes for 32 weights.  The prompt is 7 tokens with its first mark.
"""

from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flyweight.describe import describe
from flyweight.errors import FlyweightError
from flyweight.lowlevel import KVCacheModel
from flyweight.plan.roofline import OpCost
from flyweight.planning import op_costs
from flyweight.planning.walk_report import report_walkthrough
from flyweight.planning.walkthrough import OpTotal, StepWalker, Walkthrough, walk
from flyweight.text.absent import load_any_tokenizer

MODELS = Path(__file__).parents[1] / "data" / "models"
PROMPT = "Once upon a time there was"
SETTINGS = {"threads": 1, "max_model_len": 64}


@pytest.fixture(scope="module")
def walked() -> Walkthrough:
    return walk("stories", PROMPT, SETTINGS)


def find(ops: tuple[OpTotal, ...], label: str) -> OpTotal:
    return next(op for op in ops if op.label == label)


PREFILL = {  # operations and bytes, over 6 layers
    "embedding": (0, 7 * (192 // 32 * 34 + 4 * 192)),
    # The first has no residual to add to: it norms alone.
    "attn norm": (7 * 192 * (4 + 5 * 5), 7 * 192 * 4 * (2 + 5 * 4)),
    "q, k, v": (2 * 7 * 320 * 192 * 6, 320 * 192 // 32 * 34 * 6),
    "rope, store": (3 * 7 * 8 * 32 * 6, 7 * (4 * (320 + 192) + 2 * 2 * 32 * 2) * 6),
    # 1 + 2 + ... + 7 = 28 pairs a head, each a product of 32 with K and one with V.
    "attention": (2 * 28 * 6 * 64 * 6, 7 * 2 * 64 * 2 * 6),
    "attn out": (2 * 7 * 192 * 192 * 6, 192 * 192 // 32 * 34 * 6),
    "MLP norm": (7 * 192 * 5 * 6, 7 * 192 * 4 * 4 * 6),
    "gate, up": (2 * 7 * 1024 * 192 * 6, 1024 * 192 // 32 * 34 * 6),
    "activation": (5 * 7 * 512 * 6, 4 * 7 * 3 * 512 * 6),
    "down": (2 * 7 * 192 * 512 * 6, 192 * 512 // 32 * 34 * 6),
    "final norm": (5 * 192, 4 * 4 * 192),
    "logits": (2 * 2048 * 192, 2048 * 192 // 32 * 34),
    "sampling": (2048, 4 * 2048),
}


@pytest.mark.parametrize("label", PREFILL)
def test_costs_of_prefill(walked: Walkthrough, label: str) -> None:
    op = find(walked.prefill.ops, label)
    assert (op.operations, op.nbytes) == PREFILL[label]


def test_costs_of_decode(walked: Walkthrough) -> None:
    assert (walked.decode.tokens, walked.decode.context) == (1, 8)
    attention = find(walked.decode.ops, "attention")
    assert attention.operations == 2 * 8 * 6 * 64 * 6
    assert attention.nbytes == 8 * 2 * 64 * 2 * 6
    gate = find(walked.decode.ops, "gate, up")
    assert gate.operations == 2 * 1024 * 192 * 6
    assert gate.operations / gate.nbytes == pytest.approx(2 * 32 / 34)  # 2 a weight of 34/32 B


def test_shapes_are_those_of_the_model(walked: Walkthrough) -> None:
    down = find(walked.prefill.ops, "down")
    assert (down.given, down.weight, down.result) == ((7, 512), (192, 512), (7, 192))
    assert down.calls == 6
    attention = find(walked.decode.ops, "attention")
    assert (attention.given, attention.result) == ((1, 6, 32), (1, 192))
    assert find(walked.prefill.ops, "logits").given == (1, 192), "the last row alone meets the head"
    assert [op.label for op in walked.prefill.ops][:4] == [
        "embedding",
        "rope angles",
        "attn norm",
        "q, k, v",
    ]


def test_the_limit_is_what_takes_longer(walked: Walkthrough) -> None:
    limits = walked.machine.limits
    for op in walked.prefill.ops + walked.decode.ops:
        larger = max(op.compute, op.memory)  # in all; each of its calls has a limit of its own
        assert larger * (1 - 1e-9) <= op.least <= (op.compute + op.memory) * (1 + 1e-9)
        bound = "compute" if op.compute >= op.memory else "memory"
        assert op.binds == (bound if op.least else "")
    norm = find(walked.decode.ops, "final norm")
    assert norm.memory == pytest.approx(16 * 192 / limits.read)
    assert norm.compute == pytest.approx(5 * 192 / limits.f32)


def test_tokens_and_answer_are_the_models(walked: Walkthrough) -> None:
    assert "".join(walked.pieces[1:]) == PROMPT and len(walked.pieces) == 7
    alone = KVCacheModel("stories", **SETTINGS)
    assert walked.answer == alone.tokenizer.decode([int(alone.prefill(PROMPT).argmax())])


@pytest.fixture
def wordless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixtures of families have no tokenizer."""
    lenient = partial(describe, read_tokenizer=load_any_tokenizer)
    monkeypatch.setattr("flyweight.build.describe", lenient)
    monkeypatch.setattr("flyweight.build.fingerprint_text", lambda found: "")


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v2-lite", "gpt2", "gemma2", "olmo2"])
def test_timing_ops_changes_no_bit(name: str) -> None:
    cache = KVCacheModel(MODELS / name, threads=1, max_model_len=32)
    walker = StepWalker(cache)
    tokens = [5, 6, 7, 8, 9]
    plain = cache.prefill(tokens).copy()
    walker.runner.model = walker.metered
    assert np.array_equal(plain, cache.prefill(tokens))
    assert len(walker.meter.take_calls()) > 10


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v2-lite", "gpt2", "gemma2"])
def test_other_families_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepWalker, "read_prompt", lambda self, prompt: [5, 6, 7])
    monkeypatch.setattr("flyweight.planning.walkthrough.spell_token", lambda tokenizer, id: "x")
    walked = walk(str(MODELS / name), "", {"threads": 1, "max_model_len": 32})
    products = [op for op in walked.prefill.ops if op.weight]
    assert len(products) >= 4
    assert all(op.operations > 0 and op.nbytes > 0 for op in products)
    assert find(walked.decode.ops, "attention").operations > 0


def test_a_long_prompt_is_refused() -> None:
    with pytest.raises(FlyweightError, match=r"tokens; explain shows one step"):
        walk("stories", "a b c d " * 20, {"max_num_batched_tokens": 64})


def test_costs_of_ops_that_the_model_inside_lacks() -> None:
    assert op_costs.count_add(3, 10) == OpCost(30, 360, "f32")
    assert op_costs.count_activation(3, 10, gated=False) == OpCost(120, 240, "f32")
    assert op_costs.count_product([], 3) == OpCost(0, 0, "f32")


def test_the_report_has_sums_and_says_where_limits_come_from(walked: Walkthrough) -> None:
    report = report_walkthrough(walked)
    shapes, prefill, decode = report.tables
    assert [table.name for table in report.tables] == ["shapes", "prefill", "decode"]
    for table, step in ((prefill, walked.prefill), (decode, walked.decode)):
        total = table.list_records()[-1]
        assert total["op"] == "sum"
        assert total["operations"] == sum(op.operations for op in step.ops)
        assert total["seconds"] == pytest.approx(sum(op.seconds for op in step.ops))
        assert total["share"] == pytest.approx(step.least / step.seconds)
    assert shapes.list_records()[3]["matrix"] == "320×192"
    assert any("micro-benchmark" in note and "counter" in note for note in report.notes)
    assert {field.name for field in fields(OpTotal)} >= {"least", "seconds"}
