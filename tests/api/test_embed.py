"""`LLM.embed`: one vector a prompt, the same however the prompt was computed."""

from pathlib import Path

import numpy as np
import pytest

from flyweight import LLM, CheckpointError, PoolingParams, RequestError, SamplingParams
from tiny_model import tiny_folder

KINDS = ("mean", "last", "cls")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, threads=2, block_size=8)


def vectors(llm: LLM, prompts, kind: str, **more) -> list[list[float]]:
    return [out.outputs.embedding for out in llm.embed(prompts, PoolingParams(kind), **more)]


PROMPTS = [[3 + (7 * i + j) % 400 for j in range(n)] for i, n in enumerate((1, 2, 40, 41, 200, 9))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_does_not_depend_on_chunks_or_company(folder: Path, llm: LLM, kind: str) -> None:
    alone = [vectors(llm, p, kind, salt=str(i))[0] for i, p in enumerate(PROMPTS)]
    assert vectors(llm, PROMPTS, kind) == alone
    assert vectors(llm, PROMPTS, kind) == alone, "now with what is in the prefix cache"
    narrow = LLM(folder, block_size=8, max_num_batched_tokens=5, max_num_seqs=5, threads=1)
    assert vectors(narrow, PROMPTS, kind) == alone
    tight = LLM(folder, block_size=8, blocks=32, max_num_batched_tokens=64)
    assert vectors(tight, PROMPTS * 4, kind) == alone * 4


def test_what_the_prefix_cache_may_be_used_for(folder: Path) -> None:
    llm = LLM(folder, block_size=8)
    prompt = PROMPTS[4]
    cached = [llm.embed(prompt, PoolingParams(k))[0].num_cached_tokens for k in ("mean",) * 2]
    assert cached == [0, 0], "every hidden state is in a mean"
    assert llm.embed(prompt, PoolingParams("last"))[0].num_cached_tokens == 192
    reported = llm.generate(prompt, SamplingParams(max_tokens=2))[0]
    assert reported.num_cached_tokens == 192, "a prompt that was embedded is found by others"


def test_many_rows_are_summed_a_few_at_a_time(folder: Path) -> None:
    """Steps of 512 tokens hand out 256 hidden states at most."""
    llm = LLM(folder, max_model_len=2048, notify=None)
    engine, seen = llm.loaded.engine, []
    submit = engine.runner.submit

    def watched(batch, *given):
        seen.append(0 if batch.hidden is None else len(batch.hidden))
        return submit(batch, *given)

    engine.runner.submit = watched
    llm.embed([[5] * 600, [6] * 600, [7] * 300], PoolingParams("mean"))
    assert max(seen) == 256 and sum(seen) == 1500


def test_pooled_as_requested(llm: LLM) -> None:
    (first,) = llm.embed("hello there")
    assert first.prompt == "hello there" and first.finished
    assert first.prompt_token_ids == llm.tokenizer.encode("hello there")
    assert first.outputs.hidden_size == len(first.outputs.embedding) == 32
    assert np.linalg.norm(first.outputs.embedding) == pytest.approx(1, abs=1e-6)
    raw = llm.embed("hello there", PoolingParams(normalize=False))[0].outputs.embedding
    unit = np.array(raw) / np.linalg.norm(raw)
    assert first.outputs.embedding == pytest.approx(unit, abs=1e-6)
    each = llm.embed(["hello there", "hello there"], [PoolingParams("mean"), PoolingParams("last")])
    assert each[1].outputs == first.outputs != each[0].outputs


def test_a_prompt_may_fill_the_context(llm: LLM) -> None:
    (out,) = llm.embed([[5] * 256], PoolingParams("mean"))
    assert len(out.prompt_token_ids) == 256
    with pytest.raises(RequestError, match=r"257 tokens; allowed: 1 to 256 \(max_m"):
        llm.embed([[5] * 257])


@pytest.mark.parametrize("kind", ["bert", "nomic_bert"])
def test_encoders_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"'{kind}'"):
        LLM(tiny_folder(tmp_path / "encoder", {"model_type": kind}))


def test_bad_asks_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"pooling = 'men' is not valid; .*did you mean 'mean'"):
        PoolingParams("men")
    with pytest.raises(RequestError, match="normalize = 1"):
        PoolingParams(normalize=1)
    with pytest.raises(RequestError, match="pooling_params is a list of 1 for 2 prompts"):
        llm.embed(["a", "b"], [PoolingParams()])
    with pytest.raises(RequestError, match="pooling_params = 'mean'"):
        llm.embed("a", "mean")
    assert not llm.loaded.engine.busy
