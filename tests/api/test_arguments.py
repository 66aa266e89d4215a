"""vLLM's arguments and methods on `LLM`: what each comes to, what is refused, and the names."""

import inspect
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from flyweight import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    BeamSearchOutput,
    BeamSearchParams,
    ConfigError,
    EngineArgs,
    LoRARequest,
    RequestError,
    SamplingParams,
    StructuredOutputsParams,
    TextPrompt,
    TokensPrompt,
    inputs,
    outputs,
    sampling_params,
)
from flyweight.arguments import compat
from flyweight.arguments.engine import KNOWN, choose_engine
from flyweight.arguments.keywords import EngineOptions
from flyweight.config import Settings
from flyweight.outputs import Counter, Gauge
from flyweight.params.structured import StructuredOutputs
from flyweight.spec import KV_TYPES
from tiny_model import VOCAB, tiny_adapter, tiny_folder

FEW = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    adapter = tiny_adapter(folder.parent / "adapter")
    given: Any = {"poet": adapter}
    return LLM(folder, threads=1, block_size=8, adapters=given, enable_lora=True, max_logprobs=-1)


def refusal(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        LLM(**arguments)
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)
    return str(caught.value)


# --- arguments ---


def test_what_serve_understands_is_understood_here() -> None:
    """One table: every key is known, and every option that can be met has a key."""
    keys = set(EngineOptions.__annotations__)
    assert keys <= KNOWN
    assert {field.name for field in fields(Settings)} - {"model"} <= keys
    met = {support.name.replace("-", "_") for support in compat.ENGINE if support.accepted}
    assert met <= keys


def test_a_token_of_the_hub_is_not_repeated() -> None:
    said = refusal(hf_token="hf_secret")
    assert said == "hf_token = ... is not supported: a secret is read from the environment; " \
        "set HF_TOKEN"  # fmt: skip


def test_what_changes_no_answer_is_accepted_and_shown(folder: Path) -> None:
    arguments: dict[str, Any] = dict(
        tokenizer=str(folder), tensor_parallel_size=1, gpu_memory_utilization=0.9, dtype="auto",
        quantization=None, enforce_eager=True, trust_remote_code=True, max_model_len=64,
        enable_chunked_prefill=True, load_format="safetensors", swap_space=0, seed=0,
        calculate_kv_scales=True,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3}, deterministic=True,
    )  # fmt: skip
    with LLM(str(folder), **arguments) as llm:
        rows = {row["feature"]: row for row in llm.effective}
        given = {name for name, value in arguments.items() if value is not None}
        settings = {"gpu_memory_utilization", "load_format"} - rows.keys()
        assert given - {"seed"} <= rows.keys() | settings
        assert all(row["effective"] and row["reason"] for row in rows.values())
        assert rows["trust_remote_code"]["requested"] == "trust_remote_code = True"
        assert rows["deterministic"]["effective"] == "always"
        assert rows["speculative_config"]["effective"] == "ngram, 3 tokens a step"
        assert rows["max_model_len"]["effective"] == "64" and llm.settings.memory_limit == "90%"
        assert not any("--" in row["reason"] + row["requested"] for row in rows.values())
    assert choose_engine({}).settings == Settings() and not choose_engine({"max_loras": None}).notes


NO_EFFECT: dict[str, tuple[Any, ...]] = {  # arguments of vLLM's, and values that are accepted
    "compilation_config": (3, {"level": 3, "cudagraph_mode": "NONE"}),
    "attention_backend": ("FLASH_ATTN",),
    "limit_mm_per_prompt": ({"image": 0}, {"video": 0, "image": 0}, {}),
    "mm_processor_kwargs": ({"num_crops": 4},),
    "pooler_config": ({"pooling_type": "LAST"},),
    "served_model_name": ("mine", ["mine", "also"]),
}


@pytest.mark.parametrize("name", NO_EFFECT)
def test_what_has_no_effect_is_listed(name: str) -> None:
    for value in NO_EFFECT[name]:
        (note,) = choose_engine({name: value}).notes
        assert (note.feature, note.requested) == (name, f"{name} = {value!r}") and note.reason


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"zzz": 1}, "unknown setting 'zzz'; docs/python-api.md lists all settings"),
        ({"limit_mm_per_prompt": {"image": 1}}, "set each limit to 0, or leave it out"),
        ({"limit_mm_per_prompt": "image"}, "set each limit to 0, or leave it out"),
        ({"pooler_config": {"pooling_type": "MEAN"}}, "set pooling and normalize in the request"),
        ({"data_parallel_size": 2}, "data_parallel_size = 2 is not supported: one process"),
        ({"enable_chunked_prefill": False}, "enable_chunked_prefill = False is not supported"),
        ({"quantization": "gptq"}, "'gptq', and stories.gguf is quantised as gguf; leave it out"),
        ({"tokenizer": "other"}, "tokenizer = other is not supported: the tokenizer is read"),
        ({"load_format": "dummy"}, "allowed: auto, safetensors"),
        ({"load_format": "safetensors"}, "load_format = 'safetensors', and stories.gguf holds"),
        ({"dtype": "int4"}, "allowed: auto, half, float16, bfloat16, float, float32"),
        ({"speculative_config": "ngram"}, 'allowed: an object such as {"method": "ngram"'),
        ({"enforce_eager": "yes"}, "enforce_eager = 'yes' is not valid; allowed: True, False"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization = 1.5 is out of range"),
        ({"gpu_memory_utilization": 0.5, "memory_limit": "1GiB"}, "exclude each other"),
        ({"kv_cache_dtype": "fp8_e4"}, "did you mean 'fp8_e4m3'?"),
        (
            {"kv_cache_dtype": "fp8", "block_size": 8},
            "block_size = 8 is not supported with kv_cache_dtype = fp8_e4m3",
        ),
        ({"max_model_len": 2.5}, "max_model_len = 2.5 is not valid"),
        ({"enable_lora": True}, 'name them: adapters={"NAME": "FOLDER"}'),
        (
            {"speculative_config": {"model": "m", "num_speculative_tokens": 0}},
            "num_speculative_tokens = 0 is out of range",
        ),
        (
            {"speculative_config": {"method": "mlp_speculator"}},
            "'mlp_speculator' is not supported yet",
        ),
        ({"override_generation_config": {"temprature": 1}}, "did you mean 'temperature'?"),
    ],
)
def test_what_cannot_be_met_is_refused_with_the_way_out(arguments, says: str) -> None:
    assert says in refusal(**arguments)


def test_an_unknown_setting_is_one_short_line() -> None:
    said = refusal(memory_limt="1GiB")
    assert said == (
        "unknown setting 'memory_limt' (did you mean 'memory_limit'?); docs/python-api.md lists "
        "all settings"
    )


def test_all_refusals_are_reported_at_once() -> None:
    said = refusal(data_parallel_size=2, quantization="awk", threads=0, port=80)
    for part in ("data_parallel_size = 2", "'awk'", "threads = 0", "unknown setting 'port'"):
        assert part in said


def test_meanings_of_values() -> None:
    assert choose_engine({"max_model_len": "32k"}).settings.max_model_len == 32000
    assert choose_engine({"max_model_len": -1}).settings.max_model_len is None
    assert choose_engine({"num_gpu_blocks_override": 9}).settings.blocks == 9
    pytorchs = type("dtype", (), {"__str__": lambda _: "torch.float32"})()  # str(torch.float32)
    for dtype, computed in (("half", "bf16"), ("float16", "bf16"), (pytorchs, "f32")):
        assert choose_engine({"dtype": dtype}).settings.activations == computed
    assert choose_engine({"quantization": "gguf"}).settings.load_format == "gguf"


def test_defaults_of_sampling(tmp_path: Path) -> None:
    found = tiny_folder(tmp_path / "m", generation={"temperature": 0.5, "top_k": 7})
    given = LLM(found, override_generation_config={"temperature": 0.3, "top_k": None})
    assert given.read_generation_defaults() == {"temperature": 0.3}
    assert LLM(found, generation_config="vllm").read_generation_defaults() == {}
    assert LLM(found).read_generation_defaults() == {"temperature": 0.5, "top_k": 7}


def test_engine_args_are_the_same_arguments(folder: Path) -> None:
    arguments = EngineArgs(model=str(folder), max_model_len=64, enforce_eager=True)
    assert LLM(**asdict(arguments)).loaded.limits.max_model_len == 64
    assert arguments == EngineArgs(model=str(folder), max_model_len=64, enforce_eager=True)
    with pytest.raises(TypeError, match="max_modl_len"):
        EngineArgs(max_modl_len=3)  # type: ignore[call-arg]


# --- vLLM's names ---


def test_modules_and_classes_have_vllms_names() -> None:
    assert sampling_params.SamplingParams is SamplingParams
    assert sampling_params.StructuredOutputsParams is StructuredOutputsParams is StructuredOutputs
    assert sampling_params.BeamSearchParams is BeamSearchParams
    assert {"RequestOutput", "CompletionOutput", "EmbeddingRequestOutput"} <= set(dir(outputs))
    assert inputs.TextPrompt is TextPrompt and inputs.TokensPrompt is TokensPrompt
    assert AsyncLLMEngine is AsyncLLM and issubclass(AsyncEngineArgs, EngineArgs)


def test_the_typed_signatures_have_the_fields(request: pytest.FixtureRequest) -> None:
    """The written signature of StructuredOutputs has its fields; SamplingParams' is its fields'."""
    source = Path(__import__(StructuredOutputs.__module__, fromlist=["x"]).__file__).read_text()
    start = source.index("        def __init__(")
    signature = source[start : source.index(") -> None: ...", start)]
    named = {line.split(":")[0].strip() for line in signature.splitlines() if ": " in line}
    assert named == {field.name for field in fields(StructuredOutputs)}
    assert set(inspect.signature(SamplingParams).parameters) == {
        field.name for field in fields(SamplingParams)
    }


def test_clone() -> None:
    params = SamplingParams(stop=["a"], temperature=0.5)
    assert params.clone() == params and params.clone() is not params


# --- methods ---


def test_a_model_in_short(folder: Path, llm: LLM) -> None:
    assert repr(llm) == f"LLM({str(folder)!r}, family='llama', max_model_len=256)"
    assert repr(llm.tokenizer) == f"Tokenizer(vocab_size={llm.tokenizer.vocab_size})"


def test_close_frees_and_ends(folder: Path) -> None:
    with LLM(folder, threads=1) as llm:
        long = SamplingParams(max_tokens=100, ignore_eos=True)
        stream, later = (llm.stream("hello there", long) for _ in range(2))
        next(stream)
    (last,) = stream
    assert last.finished and last.outputs[0].finish_reason == "abort"
    with pytest.raises(RequestError, match="closed; make another"):
        next(later)
    with pytest.raises(RequestError, match="closed; make another"), llm:
        pass
    assert repr(llm) == f"LLM({str(folder)!r}, closed)"
    llm.close()
    for call in (lambda: llm.generate("a"), lambda: llm.stats(), lambda: llm.effective):
        with pytest.raises(RequestError, match="closed; make another"):
            call()


def test_metrics_and_the_prefix_cache(llm: LLM) -> None:
    def value(name: str) -> float:
        return next(metric.value for metric in llm.get_metrics() if metric.name == name)

    text = "hello there you and you and you and me and them " * 2
    llm.reset_prefix_cache()
    first = llm.generate(text, FEW, use_tqdm=False)[0]
    before = value("vllm:prefix_cache_hits")
    again = llm.generate(text, FEW, use_tqdm=False)[0]
    assert again.num_cached_tokens > 0
    assert value("vllm:prefix_cache_hits") == before + again.num_cached_tokens
    assert llm.reset_prefix_cache() is True
    cold = llm.generate(text, FEW, use_tqdm=False)[0]
    assert cold.num_cached_tokens == first.num_cached_tokens == 0
    assert cold.outputs[0].token_ids == first.outputs[0].token_ids == again.outputs[0].token_ids
    assert value("vllm:num_requests_running") == 0
    assert all(isinstance(metric, Counter | Gauge) for metric in llm.get_metrics())
    assert len({metric.name for metric in llm.get_metrics()}) == len(llm.get_metrics())


def test_lora_requests(llm: LLM, folder: Path) -> None:
    def texts(**lane: Any) -> list[list[int]]:
        outs = llm.generate(["hello there"] * 2, FEW, use_tqdm=False, **lane)
        return [out.outputs[0].token_ids for out in outs]

    poet = LoRARequest("poet", 1, str(folder.parent / "adapter"))
    assert texts(lora_request=poet) == texts(adapter="poet")
    assert texts(lora_request=[poet, None]) == texts(adapter=["poet", ""])
    for wrong, says in (
        ({"lora_request": LoRARequest("bard", 1, "some/where")}, "adapters={'bard': 'some/where'}"),
        ({"lora_request": LoRARequest("poet", 1, "some/where")}, "was loaded from"),
        ({"lora_request": [poet]}, "lora_request is a list of 1 for 2 prompts; allowed"),
        ({"lora_request": "poet"}, "lora_request = .poet. is not valid; allowed: one LoRARequest"),
        ({"lora_request": ["poet"] * 2}, "allowed: one LoRARequest"),
        ({"lora_request": poet, "adapter": "poet"}, "exclude each other"),
    ):
        with pytest.raises(RequestError, match=says.replace("{", r"\{")):
            texts(**wrong)


def test_the_format_of_content_is_auto(llm: LLM) -> None:
    talk = [{"role": "user", "content": "hello"}]
    plain, auto = (
        llm.chat(talk, FEW, use_tqdm=False, **given)[0].outputs[0].token_ids
        for given in ({}, {"chat_template_content_format": "auto"})
    )
    assert plain == auto
    with pytest.raises(RequestError, match="chat_template_content_format = 'openai' is not valid"):
        llm.chat(talk, FEW, chat_template_content_format="openai")  # type: ignore[arg-type]


def test_priority_is_one_or_one_for_each(folder: Path, llm: LLM) -> None:
    prompts = ["hello", "there", "you"]
    expected = [out.outputs[0].token_ids for out in llm.generate(prompts, FEW, use_tqdm=False)]
    for priority in ([2, 0, 1], None, 5):
        outs = llm.generate(prompts, FEW, use_tqdm=False, priority=priority)
        assert [out.outputs[0].token_ids for out in outs] == expected
    with pytest.raises(RequestError, match="priority is a list of 2 for 3 prompts; allowed"):
        llm.generate(prompts, FEW, priority=[1, 2])
    in_order = LLM(folder, threads=1, scheduling_policy="fcfs")
    assert in_order.generate("hello", FEW, use_tqdm=False)
    with pytest.raises(RequestError, match="priority cannot be combined with scheduling_policy"):
        in_order.generate("hello", FEW, priority=1)


def test_prompts_by_vllms_classes(llm: LLM) -> None:
    text = "hello there you and you and you and me and them"
    ids = llm.get_tokenizer().encode(text)
    llm.reset_prefix_cache()
    prompts = [TextPrompt(prompt=text), TokensPrompt(prompt_token_ids=ids)]
    one, other = llm.generate(prompts, FEW, use_tqdm=False)
    assert one.outputs[0].token_ids == other.outputs[0].token_ids
    salted = TextPrompt(prompt=text, cache_salt="mine")
    assert llm.generate(text, FEW, use_tqdm=False)[0].num_cached_tokens > 0
    assert llm.generate(salted, FEW, use_tqdm=False)[0].num_cached_tokens == 0
    with pytest.raises(RequestError, match="cache_salt = 5"):
        llm.generate({"prompt": text, "cache_salt": 5}, FEW)


def test_a_request_keeps_the_options_it_was_given(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    stream = llm.stream("hello", params)
    next(stream)
    params.max_tokens = 2
    *_, last = stream
    assert len(last.outputs[0].token_ids) == 6
    assert len(llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids) == 2


def test_the_whole_vocabulary_is_listed(llm: LLM) -> None:
    every = SamplingParams(temperature=0, max_tokens=3, logprobs=-1, prompt_logprobs=-1)
    few = SamplingParams(temperature=0, max_tokens=3, logprobs=5, prompt_logprobs=5)
    whole, part = llm.generate(["hello there"] * 2, [every, few], use_tqdm=False)
    assert whole.outputs[0].token_ids == part.outputs[0].token_ids
    assert whole.prompt_logprobs is not None and part.prompt_logprobs is not None
    assert whole.prompt_logprobs[0] is None
    rows = [*(whole.outputs[0].logprobs or ()), *whole.prompt_logprobs[1:]]
    best = [*(part.outputs[0].logprobs or ()), *part.prompt_logprobs[1:]]
    for row, five in zip(rows, best, strict=True):
        assert row is not None and five is not None and row.keys() == set(range(VOCAB))
        assert sorted(one.rank or 0 for one in row.values()) == list(range(1, VOCAB + 1))
        assert math.isclose(sum(math.exp(one.logprob) for one in row.values()), 1, rel_tol=1e-5)
        for id, one in five.items():
            assert row[id].rank == one.rank and abs(row[id].logprob - one.logprob) < 1e-5


def test_the_whole_vocabulary_needs_max_logprobs(folder: Path) -> None:
    small = LLM(folder, threads=1)
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(RequestError, match=rf"{name} = -1 requests all {VOCAB} tokens"):
            small.generate("hello", SamplingParams(**{name: -1}))
    with pytest.raises(ConfigError, match="memory_limit"):
        LLM(max_logprobs=-1, memory_limit="150MiB", max_model_len=512)


@pytest.mark.parametrize(
    ("given", "stored"),
    [("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2"), ("bfloat16", "bf16"), ("int4", "int4")],
)
def test_types_of_k_and_v(folder: Path, given: str, stored: str) -> None:
    """vLLM's spellings; the prefix cache's keys name the type."""
    with LLM(folder, threads=1, kv_cache_dtype=given) as some:
        rows = {row["feature"]: row for row in some.effective}
        assert rows["kv_cache_dtype"]["effective"] == stored
        assert ("codes" in str(rows["kv_cache_dtype"]["reason"])) == KV_TYPES[stored].coded
        assert stored in some.loaded.engine.scheduler.prefix.keys.fingerprint.split()
        assert some.generate("hello", FEW, use_tqdm=False)[0].outputs[0].token_ids


def test_beams_are_sequences_too(llm: LLM) -> None:
    search = BeamSearchParams(beam_width=3, max_tokens=4, temperature=0.0)
    ids = llm.get_tokenizer().encode("hello")
    for prompt in (TextPrompt(prompt="hello"), TokensPrompt(prompt_token_ids=ids)):
        (out,) = llm.beam_search([prompt], search, use_tqdm=False)
        assert isinstance(out, BeamSearchOutput) and len(out.sequences) == 3
        for beam, answer in zip(out.sequences, out.outputs, strict=True):
            assert beam.tokens == [*out.prompt_token_ids, *answer.token_ids]
            assert beam.text.endswith(answer.text) and beam.text.startswith("hello")
            assert beam.cum_logprob == answer.cumulative_logprob
        scores = [beam.score for beam in out.sequences]
        assert scores == sorted(scores, reverse=True)
    with pytest.raises(RequestError, match=r"temperature = 1.0 is out of range"):
        BeamSearchParams(temperature=1.0)
