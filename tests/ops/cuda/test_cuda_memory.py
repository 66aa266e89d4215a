"""The memory promise on a GPU: the plan is of the device's memory, and is kept."""

import pytest
import torch

from flyweight import LLM, SamplingParams
from flyweight.errors import ConfigError

GIB = 1 << 30

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def measure_used() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def test_the_plan_is_kept() -> None:
    """Graphs of several sizes, long and short prompts; whatever else the device holds counts."""
    limit = measure_used() + 3 * GIB
    llm = LLM(None, backend="cuda", memory_limit=limit, max_num_seqs=16, max_model_len=512)
    prompts = [{"prompt_token_ids": [1 + i % 90] * (3 + 29 * i)} for i in range(16)]
    llm.generate(prompts, SamplingParams(max_tokens=40, temperature=0.8, seed=1), use_tqdm=False)
    torch.cuda.synchronize()
    assert measure_used() <= limit


def test_what_does_not_fit_is_refused_before_loading() -> None:
    held = measure_used()
    with pytest.raises(ConfigError, match=r"memory_limit of .* is too small"):
        LLM(None, backend="cuda", memory_limit=held // 2 + (1 << 20))
    assert measure_used() - held < GIB
