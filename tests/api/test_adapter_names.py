"""Adapters as callers use them: loaded by name, chosen by request, in every kind of call."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from filewriters import encode, write_safetensors
from flyweight import (
    LLM,
    AsyncLLM,
    BeamSearchParams,
    CheckpointError,
    ConfigError,
    RequestError,
    SamplingParams,
)
from tiny_model import CONFIG, tiny_folder

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "hello there"


def adapter_folder(path: Path, seed: int) -> Path:
    """A LoRA adapter of every query and down projection of the tiny model."""
    rng = np.random.default_rng(seed)
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    tensors = {}
    for i in range(CONFIG["num_hidden_layers"]):
        sizes = {"self_attn.q_proj": (hidden, hidden), "mlp.down_proj": (hidden, inner)}
        for module, (n, k) in sizes.items():
            at = f"base_model.model.model.layers.{i}.{module}"
            tensors[f"{at}.lora_A.weight"] = encode(rng.normal(0, 0.4, (3, k)), "f32")
            tensors[f"{at}.lora_B.weight"] = encode(rng.normal(0, 0.4, (n, 3)), "bf16")
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 6}))
    write_safetensors(path / "adapter_model.safetensors", tensors)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    found = {name: adapter_folder(root / name, i) for i, name in enumerate(("poet", "clerk"))}
    return found | {"model": tiny_folder(root / "model")}


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> LLM:
    adapters = {name: folders[name] for name in ("poet", "clerk")}
    return LLM(folders["model"], threads=2, block_size=8, adapters=adapters)


def ids(outs: list) -> list[tuple[int, ...]]:
    return [tuple(out.outputs[0].token_ids) for out in outs]


def test_one_for_all_and_one_each(llm: LLM, folders: dict[str, Path]) -> None:
    names = ["", "poet", "clerk", "poet"]
    together = ids(llm.generate([PROMPT] * 4, PARAMS, adapter=names))
    alone = [ids(llm.generate(PROMPT, PARAMS, adapter=name))[0] for name in names]
    assert together == alone and len(set(together)) == 3
    assert ids(LLM(folders["model"], threads=1).generate(PROMPT, PARAMS)) == alone[:1]


def test_every_kind_of_call_takes_one(llm: LLM) -> None:
    (wanted,) = ids(llm.generate(PROMPT, PARAMS, adapter="clerk"))
    *_, last = llm.stream(PROMPT, PARAMS, adapter="clerk")
    assert tuple(last.outputs[0].token_ids) == wanted
    plain, own = (llm.embed(PROMPT, adapter=name)[0].outputs.embedding for name in ("", "clerk"))
    assert plain != own
    both = llm.embed([PROMPT] * 2, adapter=["", "clerk"])
    assert [out.outputs.embedding for out in both] == [plain, own]
    search = BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True)
    plain, own = (llm.beam_search(PROMPT, search, adapter=name)[0] for name in ("", "clerk"))
    assert plain.outputs[0].score != own.outputs[0].score
    both = llm.beam_search([PROMPT] * 2, search, adapter=["", "clerk"])
    assert [out.outputs[0].score for out in both] == [o.outputs[0].score for o in (plain, own)]


def test_asyncio_takes_one(folders: dict[str, Path]) -> None:
    async def run() -> tuple[int, ...]:
        adapters = {"clerk": folders["clerk"]}
        async with AsyncLLM(folders["model"], threads=1, adapters=adapters) as engine:
            async for part in engine.generate(PROMPT, PARAMS, adapter="clerk"):
                last = part
        return tuple(last.outputs[0].token_ids)

    model = LLM(folders["model"], threads=1, adapters={"clerk": folders["clerk"]})
    assert [asyncio.run(run())] == ids(model.generate(PROMPT, PARAMS, adapter="clerk"))


def test_unknown_names_are_refused_before_any_work(llm: LLM) -> None:
    for call in (llm.generate, llm.stream, llm.embed, llm.beam_search):
        with pytest.raises(RequestError, match=r"'poets' is not loaded; known: poet, clerk.*poet"):
            call(PROMPT, adapter="poets")  # type: ignore[operator]
    with pytest.raises(RequestError, match="adapter is a list of 1 for 2 prompts"):
        llm.generate([PROMPT] * 2, PARAMS, adapter=["poet"])


def test_bad_adapters_are_refused_at_load(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json"):
        LLM(folders["model"], adapters={"x": tmp_path})
    for wrong in ("poet", {"": "a"}, {"a": 5}):
        with pytest.raises(ConfigError, match="adapters = "):
            LLM(folders["model"], adapters=wrong)


def test_the_command_line_takes_one(llm: LLM, folders: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "flyweight.cli.main", "run", str(folders["model"]), PROMPT]
    command += ["--adapter", str(folders["poet"]), "--temperature", "0", "-n", "12"]
    command += ["--ignore-eos", "--json", "--threads", "1"]
    out = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert out.returncode == 0, out.stderr
    found = tuple(json.loads(out.stdout)["outputs"][0]["token_ids"])
    assert [found] == ids(llm.generate(PROMPT, PARAMS, adapter="poet"))
