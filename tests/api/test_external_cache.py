"""Blocks of K/V that outlive the engine, or that its K/V memory has no room for: the same answers,
of fewer computed tokens.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.kv.records import HEAD, START
from flyweight.spec import KV_TYPES
from tiny_model import tiny_adapter, tiny_folder

PROMPTS = ["One day, " * 20, "One day, " * 20 + "a dog", "Tom and Lily " * 15]
COUNTS = [62, 63, 47]  # tokens
GREEDY = SamplingParams(max_tokens=12, temperature=0, logprobs=1)
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=4, logprobs=1)
EAGLE = {"method": "eagle", "model": "stories-eagle", "num_speculative_tokens": 3}
SMALL: dict[str, Any] = {"threads": 1, "max_model_len": 128, "max_num_seqs": 4, "block_size": 16}
SWAPPING = {**SMALL, "blocks": 9, "max_num_seqs": 2}


def run(llm: LLM, **more: Any) -> tuple[list[Any], list[int]]:
    """Tokens and log-probabilities of the answers, and the prompt tokens that were cached."""
    params = [GREEDY, DRAWN, GREEDY]
    results = llm.generate(PROMPTS, params, use_tqdm=False, **more)
    assert [len(r.prompt_token_ids) for r in results] == COUNTS
    answers = [(r.outputs[0].token_ids, str(r.outputs[0].logprobs)) for r in results]
    return answers, [r.num_cached_tokens for r in results]


def run_in_turns(llm: LLM) -> list[Any]:
    """The same prompts three times, each time after others that take all K/V memory."""
    found = []
    for _ in range(3):
        found.append(run(llm)[0])
        llm.generate(["The sun " * 50, "A big cat " * 35], GREEDY, use_tqdm=False)
    return found


def answer(**settings: Any) -> tuple[list[Any], list[int]]:
    with LLM(**{**SMALL, **settings}) as llm:
        return run(llm)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_the_next_engine_gives_the_same_answers(tmp_path: Path, kv_type: str) -> None:
    settings = {"kv_cache_dtype": kv_type, "prefix_cache_dir": tmp_path / "cache"}
    plain, _ = answer(kv_cache_dtype=kv_type)
    first, _ = answer(**settings)
    second, cached = answer(**settings)
    assert plain == first == second
    assert cached == [(count - 1) // 16 * 16 for count in COUNTS]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_only_what_no_block_has_is_computed(tmp_path: Path, backend: str) -> None:
    settings = {"backend": backend, "prefix_cache_dir": tmp_path}
    answer(**settings)
    with LLM(**{**SMALL, **settings}) as llm:
        _, cached = run(llm)
        stats = llm.stats()
    assert cached == [48, 48, 32]
    assert stats["external_hits"] == 48 + 32, "the second prompt begins with the first"
    assert stats["external_queries"] >= stats["external_hits"]
    with LLM(**{**SMALL, "backend": backend}) as llm:
        run(llm)
        assert llm.stats()["computed"] >= stats["computed"] + cached[0]
        assert llm.stats()["external_queries"] == 0


@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_swapped_blocks_come_back(kv_type: str) -> None:
    settings = {**SWAPPING, "kv_cache_dtype": kv_type}
    with LLM(**settings) as llm:
        plain = run_in_turns(llm)
        assert llm.stats()["evicted"] > 0, "the memory is too large to show anything"
        computed = llm.stats()["computed"]
    with LLM(**settings, swap_space=0.05) as llm:
        swapped = run_in_turns(llm)
        stats = llm.stats()
    assert plain == swapped
    assert stats["external_hits"] > 0 and stats["computed"] < computed


def test_a_preempted_sequence_is_swapped_in() -> None:
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    settings = {**SMALL, "blocks": 12, "max_num_seqs": 4}
    found = {}
    for swap in (0, 0.05):
        with LLM(**settings, swap_space=swap) as llm:
            texts = ["Once", "A cat", "The sun", "Lily"]
            results = llm.generate(texts, params, use_tqdm=False)
            found[swap] = [r.outputs[0].token_ids for r in results], llm.stats()
    assert found[0][0] == found[0.05][0]
    assert found[0][1]["preempted"] > 0
    assert found[0.05][1]["computed"] < found[0][1]["computed"]


def test_swap_space_and_a_directory_work_together(tmp_path: Path) -> None:
    plain, _ = answer()
    for _ in range(2):
        with LLM(**SWAPPING, swap_space=0.05, prefix_cache_dir=tmp_path) as llm:
            assert run(llm)[0] == run(llm)[0] == plain
            hits = llm.stats()["external_hits"]
    assert hits > 0


def test_tenants_never_share(tmp_path: Path) -> None:
    with LLM(**SMALL, prefix_cache_dir=tmp_path) as llm:
        run(llm, salt="one")
    with LLM(**SMALL, prefix_cache_dir=tmp_path) as llm:
        _, other = run(llm, salt="two")
        _, nobody = run(llm)
        _, same = run(llm, salt="one")
    assert other[0] == nobody[0] == 0 and same[0] > 0


def test_an_adapters_name_may_mean_another_adapter(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    adapters = [tiny_adapter(tmp_path / name, seed) for seed, name in enumerate("ab")]
    text, cache = "one two three four five six seven", tmp_path / "cache"
    cached = []
    for adapter in (adapters[0], adapters[1], adapters[0]):
        with LLM(
            model, threads=1, block_size=4, adapters={"x": adapter}, prefix_cache_dir=cache
        ) as llm:
            result = llm.generate(text, GREEDY, adapter="x", use_tqdm=False)[0]
            with_none = llm.generate(text, GREEDY, use_tqdm=False)[0]
            cached.append(result.num_cached_tokens)
            assert len(cached) > 1 or not with_none.num_cached_tokens
    assert cached[:2] == [0, 0] and cached[2] > 0


def test_other_weights_settings_or_templates_have_other_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    base = tiny_folder(tmp_path / "base")
    template = tiny_folder(tmp_path / "template", chat_template="{{ messages }}")
    rotated = tiny_folder(tmp_path / "rotated", config={"rope_theta": 5000.0})
    small = {"threads": 1, "max_model_len": 64, "prefix_cache_dir": cache}
    kinds: list[dict[str, Any]] = [
        {"model": base}, {"model": template}, {"model": rotated},
        {"model": base, "kv_cache_dtype": "f32"}, {"model": base, "block_size": 16},
        {"model": base, "activations": "f32"},
    ]  # fmt: skip
    for count, settings in enumerate(kinds, 1):
        LLM(**small, **settings).close()
        assert len(list(cache.glob("*.blocks"))) == count, settings
    LLM(**small, model=base, max_num_seqs=2).close()
    assert len(list(cache.glob("*.blocks"))) == len(kinds)


def test_rope_frequencies_may_depend_on_the_longest_context(tmp_path: Path) -> None:
    fixed = tiny_folder(tmp_path / "fixed")
    dynamic = {
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 32,
    }
    moving = tiny_folder(tmp_path / "moving", config=dynamic)
    for folder, files in ((fixed, 1), (moving, 2)):
        cache = tmp_path / f"cache of {folder.name}"
        for length in (48, 64):
            LLM(folder, threads=1, max_model_len=length, prefix_cache_dir=cache).close()
        assert len(list(cache.glob("*.blocks"))) == files


def test_a_damaged_file_costs_hits_and_nothing_else(tmp_path: Path) -> None:
    first, _ = answer(prefix_cache_dir=tmp_path)
    [path] = tmp_path.glob("*.blocks")
    whole = path.read_bytes()
    for place in (0, START + 5, START + HEAD + 9, len(whole) - 99):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        again, cached = answer(prefix_cache_dir=tmp_path)
        assert again == first and sum(cached) >= 0
    path.write_bytes(whole[: len(whole) // 2])
    assert answer(prefix_cache_dir=tmp_path)[0] == first


def test_a_reset_forgets_the_blocks_of_both(tmp_path: Path) -> None:
    with LLM(**SMALL, prefix_cache_dir=tmp_path) as llm:
        first, _ = run(llm)
        llm.reset_prefix_cache()
        again, cached = run(llm)
        assert cached[0] == 0 and again == first
        llm.reset_prefix_cache()
    assert answer(prefix_cache_dir=tmp_path) == (first, cached)


def test_two_engines_never_have_one_file(tmp_path: Path) -> None:
    with (
        LLM(**SMALL, prefix_cache_dir=tmp_path),
        pytest.raises(ConfigError, match="is in use by another engine with this model"),
    ):
        LLM(**SMALL, prefix_cache_dir=tmp_path)
    LLM(**SMALL, prefix_cache_dir=tmp_path).close()


def test_a_copied_directory_is_a_cache_of_its_own(tmp_path: Path) -> None:
    first, _ = answer(prefix_cache_dir=tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").chmod(0o700)
    again, cached = answer(prefix_cache_dir=tmp_path / "b")
    assert again == first and cached[0] > 0


def test_drafts_change_no_answer(tmp_path: Path) -> None:
    config: dict[str, Any] = {"num_speculative_tokens": 4, "adaptive": False}
    config |= {"method": "draft_model", "model": "stories-draft"}
    plain, _ = answer()
    for _ in range(2):
        settings = {**SWAPPING, "swap_space": 0.05, "prefix_cache_dir": tmp_path}
        with LLM(**settings, speculative_config=config) as llm:
            assert [run(llm)[0] for _ in range(2)] == [plain, plain]
            stats = llm.stats()
    assert stats["external_hits"] > 0 and stats["accepted"] > 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prefix_cache_gb": 0}, "prefix_cache_gb = 0 is not valid; allowed: a number of GiB, above 0"),
    ({"prefix_cache_gb": -1}, "prefix_cache_gb = -1 is not valid"),
    ({"prefix_cache_gb": True}, "prefix_cache_gb = True is not valid"),
    ({"prefix_cache_gb": float("nan")}, "prefix_cache_gb = nan is not valid"),
    ({"swap_space": -0.5}, "swap_space = -0.5 is not valid; allowed: a number of GiB, from 0"),
    ({"swap_space": float("inf")}, "swap_space = inf is not valid"),
    ({"prefix_cache_dir": ""}, "prefix_cache_dir = '' is not valid"),
    ({"prefix_cache_dir": 3}, "prefix_cache_dir = 3 is not valid"),
    (
        {"prefix_cache_dir": "x", "enable_prefix_caching": False},
        "prefix_cache_dir = 'x' is not supported with enable_prefix_caching = False",
    ),
    (
        {"swap_space": 1, "speculative_config": EAGLE},
        "swap_space = 1 is not supported with drafts of method eagle, whose states of tokens are "
        "not kept; nearest valid: method draft_model or ngram",
    ),
    (
        {"swap_space": 1, "kv_cache": False},
        "swap_space = 1 is not supported with kv_cache = False; leave one of them out",
    ),
]


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(**given)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)


def test_sizes_that_hold_no_block_name_the_nearest(tmp_path: Path) -> None:
    for name, more in (("prefix_cache_gb", {"prefix_cache_dir": tmp_path}), ("swap_space", {})):
        with pytest.raises(ConfigError, match="hold no block of") as refused:
            LLM(**SMALL, **{name: 1e-6}, **more)
        near = float(str(refused.value).rpartition("nearest valid: ")[2])
        LLM(**SMALL, **{name: near}, **more).close()


def test_swap_space_counts_in_the_memory_plan() -> None:
    with LLM(**SMALL) as plain, LLM(**SMALL, swap_space=0.25) as llm:
        rows = dict(llm.loaded.memory.list_rows())
        assert rows["swap space"] == 1 << 28
        more = llm.loaded.memory.running - plain.loaded.memory.running
        assert more == 1 << 28
        # What the process holds by now, of other tests too, is in it.
        limit = f"{(plain.loaded.memory.need + (1 << 30)) >> 20}MiB"
    with pytest.raises(ConfigError, match=r"2.00 GiB for swap_space, .*: swap_space = ") as refused:
        LLM(**SMALL, swap_space=2, memory_limit=limit)
    text = str(refused.value).partition("swap_space = ")[2]
    LLM(**SMALL, swap_space=float(text.split()[0]), memory_limit=limit).close()


def test_a_file_of_the_directory_holds_no_text(tmp_path: Path) -> None:
    answer(prefix_cache_dir=tmp_path)
    for path in tmp_path.iterdir():
        assert b"One day" not in path.read_bytes() and "One" not in json.dumps(path.name)
