"""Engines that take blocks of K/V from one another: the same answers, of fewer computed tokens."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from flyweight.engine.external import ExternalCache
from flyweight.errors import ConfigError
from tiny_model import tiny_adapter, tiny_folder

PROMPTS = ["One day, " * 20, "One day, " * 20 + "a dog", "Tom and Lily " * 15]
COUNTS = [62, 63, 47]  # tokens
GREEDY = SamplingParams(max_tokens=12, temperature=0, logprobs=1)
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=4, logprobs=1)
SMALL: dict[str, Any] = {"threads": 1, "max_model_len": 128, "max_num_seqs": 4, "block_size": 16}


def run(llm: LLM) -> tuple[list[Any], list[int]]:
    """Tokens and log-probabilities of the answers, and the prompt tokens that were cached."""
    results = llm.generate(PROMPTS, [GREEDY, DRAWN, GREEDY], use_tqdm=False)
    answers = [(r.outputs[0].token_ids, str(r.outputs[0].logprobs)) for r in results]
    return answers, [r.num_cached_tokens for r in results]


def share(folder: Path, name: str, secret: bytes = b"s" * 32) -> dict[str, Any]:
    """Settings of an engine with a directory of its own and this secret."""
    file = folder / f"{name}.secret"
    file.write_bytes(secret)
    file.chmod(0o600)
    return {"prefix_cache_dir": folder / name, "prefix_cache_secret_file": file}


def serve(folder: Path, **more: Any) -> LLM:
    return LLM(**{**SMALL, **share(folder, "first"), "prefix_cache_listen": "127.0.0.1:0", **more})


def find_cache(llm: LLM) -> ExternalCache:
    external = llm.loaded.engine.external
    assert external is not None
    return external


def find_port(llm: LLM) -> str:
    """Where a server of blocks is, once all that it has is saved."""
    external = find_cache(llm)
    while external.wanted:
        external.run_idle()
    assert external.server is not None
    return str(external.server.address)


@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_an_engine_gets_the_blocks_of_another(tmp_path: Path, kv_type: str) -> None:
    with serve(tmp_path, kv_cache_dtype=kv_type) as one:
        first, cached = run(one)
        assert cached[0] == 0
        peers = f"127.0.0.1:1, {find_port(one)}"  # the first is not there
        settings = {**SMALL, **share(tmp_path, "second"), "kv_cache_dtype": kv_type}
        with LLM(**settings, prefix_cache_peers=peers) as two:
            again, cached = run(two)
            stats = two.stats()
        one.generate("Once", GREEDY, use_tqdm=False)
        sent = one.stats()["peer_sent"]
    assert again == first and cached == [48, 48, 32]
    assert stats["peer_hits"] == stats["external_hits"] == 48 + 32
    assert stats["peer_bytes"] == sent > 0
    assert stats["peer_given_up"] == stats["peer_refused"] == 0
    with LLM(**settings) as three:
        again, cached = run(three)
        assert again == first and cached == [48, 48, 32], "they were saved in its own directory"
        assert three.stats()["peer_hits"] == 0


def test_another_secret_or_model_gets_nothing(tmp_path: Path) -> None:
    with serve(tmp_path) as one:
        first, _ = run(one)
        peers = find_port(one)
        other: list[dict[str, Any]] = [
            share(tmp_path, "other", b"t" * 32),
            {**share(tmp_path, "typed"), "kv_cache_dtype": "f32"},
        ]
        for settings in other:
            with LLM(**{**SMALL, **settings}, prefix_cache_peers=peers) as two:
                again, cached = run(two)
                assert cached[0] == 0 and two.stats()["peer_refused"] == 1
                assert "kv_cache_dtype" in settings or again == first
        one.generate("Once", GREEDY, use_tqdm=False)
        assert one.stats()["peer_refused"] == 2 and one.stats()["peer_sent"] == 0


def change(folder: Path, other: Path) -> Path:
    """A copy of a model with another bit in the last of its weights."""
    shutil.copytree(folder, other)
    file = other / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    return other


def test_a_copied_model_is_the_same_and_a_changed_one_is_not(tmp_path: Path) -> None:
    """Peers have their own files, with times of their own."""
    folder = tiny_folder(tmp_path / "model")
    adapter = tiny_adapter(tmp_path / "adapter", 0)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    copied_adapter = Path(shutil.copytree(adapter, tmp_path / "adapter copy"))
    for path in (*copy.iterdir(), *copied_adapter.iterdir()):
        os.utime(path, ns=(10**18, 10**18))
    small = {"threads": 1, "block_size": 4, "max_model_len": 64}
    text = "one two three four five six seven"
    with serve(tmp_path, **small, model=folder, adapters={"x": adapter}) as one:
        for name in ("", "x"):
            one.generate(text, GREEDY, adapter=name, use_tqdm=False)
        peers, hits = find_port(one), []
        for model, lora in ((copy, copied_adapter), (copy, tiny_adapter(tmp_path / "b", 1)),
                            (change(folder, tmp_path / "other"), adapter)):  # fmt: skip
            name = f"{model.name} {lora.name}"
            settings = {**SMALL, **share(tmp_path, name), **small, "adapters": {"x": lora}}
            with LLM(model, **settings, prefix_cache_peers=peers) as two:
                for adapter_name in ("", "x"):
                    two.generate(text, GREEDY, adapter=adapter_name, use_tqdm=False)
                    hits.append(two.stats()["peer_hits"])
    assert 0 < hits[0] < hits[1], "with and without the adapter"
    assert hits[2] == hits[3] == hits[0], "another adapter has other keys"
    assert hits[4] == hits[5] == 0, "another model"


def test_a_peer_that_ends_costs_nothing_but_time(tmp_path: Path) -> None:
    with serve(tmp_path) as one:
        first, _ = run(one)
        peers = find_port(one)
        two = LLM(**{**SMALL, **share(tmp_path, "second")}, prefix_cache_peers=peers)
    with two:
        again, cached = run(two)
    assert again == first and cached[0] == 0


def test_a_peer_that_is_too_slow_is_given_up(tmp_path: Path) -> None:
    """It sends a byte a second, and the prompts take 50 ms to compute."""
    with serve(tmp_path, prefix_cache_peer_rate=1) as one:
        first, _ = run(one)
        settings = {**SMALL, **share(tmp_path, "second"), "prefix_cache_peers": find_port(one)}
        with LLM(**settings) as two:
            find_cache(two).use_costs(lambda tokens: 0.05)
            again, cached = run(two)
            stats = two.stats()
    assert again == first and cached[0] == 0
    assert stats["peer_given_up"] >= 1 and stats["peer_hits"] == stats["peer_bytes"] == 0


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as one:
        settings = {**SMALL, **share(tmp_path, "second"), "prefix_cache_listen": find_port(one)}
        with pytest.raises(ConfigError, match="cannot be listened on: Address already in use"):
            LLM(**settings)


def test_blocks_on_their_way_count_in_the_memory_plan(tmp_path: Path) -> None:
    with LLM(**SMALL) as plain, serve(tmp_path, prefix_cache_peers="127.0.0.1:1") as llm:
        rows = dict(llm.loaded.memory.list_rows())
        assert rows["blocks to and from peers"] == 96 << 20
        assert llm.loaded.memory.running - plain.loaded.memory.running == 96 << 20
