"""`prefill`, `decode_step`, `generate` against the engine; the examples of docs and folder."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flyweight import LLM, ConfigError, KVCacheModel, RequestError, SamplingParams
from tiny_model import VOCAB, tiny_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 3, "block_size": 4}])
def test_the_three_calls_write_the_engines_greedy_text(folder: Path, settings: dict) -> None:
    model = KVCacheModel(folder, **settings)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    choice = LLM(folder).generate("hello there", params)[0].outputs[0]
    for _ in range(2):  # prefill begins anew
        token = int(model.prefill("hello there").argmax())
        found = [token]
        while len(found) < 20:
            token = model.decode_step(token)
            found.append(token)
        assert found == choice.token_ids
    assert model.generate("hello there", max_new_tokens=20) == choice.text
    assert (
        model.logits.shape == (VOCAB,)
        and model.length == len(model.tokenizer.encode("hello there")) + 19
    )


def test_logits_do_not_depend_on_how_they_were_reached(folder: Path) -> None:
    model, ids = KVCacheModel(folder), [5, 7, 9, 11, 13]
    whole = model.prefill(ids).copy()
    model.prefill(ids[:2])
    for token in ids[2:]:
        model.decode_step(token)
    assert np.array_equal(model.logits, whole)


def test_settings_that_would_change_nothing_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapters is for many requests.*use LLM"):
        KVCacheModel(folder, adapters={"poet": "poet"})


def test_what_is_out_of_order_is_refused(folder: Path) -> None:
    model = KVCacheModel(folder, max_model_len=8)
    with pytest.raises(RequestError, match="decode_step before prefill"):
        model.decode_step(3)
    with pytest.raises(RequestError, match="prompt has 8 tokens"):
        model.prefill([3] * 8)
    with pytest.raises(RequestError, match="decode_step before prefill"):
        model.decode_step(3)
    with pytest.raises(RequestError, match="max_new_tokens = 0 is out of range"):
        model.generate([3], max_new_tokens=0)
    model.prefill([3] * 7)
    with pytest.raises(RequestError, match=f"token = {VOCAB} is out of range"):
        model.decode_step(VOCAB)
    model.decode_step(3)
    with pytest.raises(RequestError, match="context is full \\(8 tokens, max_model_len = 8"):
        model.decode_step(3)


def test_the_documents_example_runs() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    section = page.split("## Low-level API", 1)[1]
    code = re.search(r"```python\n(.*?)```", section, re.S)
    assert code is not None
    shown = re.findall(r"^.*# (.+)$", code[1], re.M)[-1]
    done = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == shown


def test_the_batch_example_runs_without_ray() -> None:
    example = ROOT / "examples" / "batch_inference.py"
    done = subprocess.run(
        [sys.executable, str(example), "--batch-size", "3"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" -> ")[0] for line in lines] == [
        "'Once upon a time'", "'The cat'", "'Lily and Tom'", "'One day'",
    ]  # fmt: skip
    reported = LLM().generate("The cat", SamplingParams(temperature=0, max_tokens=24))[0].outputs[0]
    assert lines[1] == f"'The cat' -> {reported.text!r}"
