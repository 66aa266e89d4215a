"""Programs written for vLLM: those of the founding documents as they stand there, and calls of
vLLM's offline interface.  A test replaces the import and runs them.
"""

# --- the founding documents ---

OPT = """
from vllm import LLM

# Initialize the vLLM engine.
llm = LLM(model="facebook/opt-125m")
"""

BATCH = """
from vllm import LLM, SamplingParams

# Initialize vLLM engine
llm = LLM(
    model="meta-llama/Llama-2-7b-hf",
    tensor_parallel_size=1,
    gpu_memory_utilization=0.9,
    max_model_len=4096
)

# Batch inference
prompts = [
    "Explain quantum computing in simple terms.",
    "Write a Python function to sort a list.",
    "What are the benefits of exercise?"
]

sampling_params = SamplingParams(
    temperature=0.8,
    top_p=0.95,
    max_tokens=256
)

outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    print(output.outputs[0].text)
"""

FASTAPI = """
from vllm import LLM, SamplingParams
from fastapi import FastAPI
from pydantic import BaseModel
import uvicorn

app = FastAPI()

# Initialize optimized model
llm = LLM(
    model="TheBloke/Llama-2-7B-Chat-GPTQ",
    quantization="gptq",
    tensor_parallel_size=1,
    gpu_memory_utilization=0.85,
    max_model_len=2048,
    enforce_eager=True  # Disable CUDA graphs for lower latency
)

class GenerationRequest(BaseModel):
    prompt: str
    max_tokens: int = 256
    temperature: float = 0.7

@app.post("/generate")
async def generate(request: GenerationRequest):
    params = SamplingParams(
        temperature=request.temperature,
        top_p=0.95,
        max_tokens=request.max_tokens
    )
    
    outputs = llm.generate([request.prompt], params)
    return {
        "text": outputs[0].outputs[0].text,
        "tokens": len(outputs[0].outputs[0].token_ids),
        "usage": {
            "prompt_tokens": len(outputs[0].prompt_token_ids),
            "completion_tokens": len(outputs[0].outputs[0].token_ids)
        }
    }

if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=8000)
"""

SERVE = """
vllm serve NousResearch/Meta-Llama-3-8B-Instruct \\
--dtype auto \\
--api-key token-abc123
"""

API_SERVER = """
python -m vllm.entrypoints.openai.api_server \\
    --host 0.0.0.0 \\
    --port 8000 \\
    --model facebook/opt-6.7b \\
    --seed 42 \\
    -tp 1 \\
    --gpu_memory_utilization 0.8 \\
    --speculative_config '{"model": "facebook/opt-125m","num_speculative_tokens": 5}'
"""

EXPERIMENTS = """
--gpu-memory-utilization 0.85 --max-num-seqs 128 --enable-prefix-caching \\
--enable-chunked-prefill \\
--speculative-config '{"method": "ngram", "num_speculative_tokens": 10}'
"""

KV_CACHE = """
from vllm import KVCacheModel  # the class of that name, with its calls
model = KVCacheModel("facebook/opt-125m")
logits = model.prefill("one two")
token = model.decode_step(int(logits.argmax()))
print(model.generate("one two", max_new_tokens=10))
"""

# --- calls of vLLM's offline interface ---

BASIC = """
from vllm import LLM, SamplingParams
llm = LLM(model="facebook/opt-125m", trust_remote_code=True, dtype="half", swap_space=4, seed=0)
params = SamplingParams(temperature=0.8, top_p=0.95, stop=["\\n\\n"], logprobs=2)
for output in llm.generate(["one", "two"], params):
    print(output.prompt, output.outputs[0].text, output.outputs[0].cumulative_logprob)
"""

MODULES = """
from vllm.sampling_params import SamplingParams, StructuredOutputsParams, BeamSearchParams
from vllm.outputs import RequestOutput, CompletionOutput
from vllm.inputs import TextPrompt, TokensPrompt
from vllm import LLM
llm = LLM("facebook/opt-125m", tokenizer="facebook/opt-125m", tokenizer_mode="auto",
          load_format="auto", disable_log_stats=True, quantization=None, max_num_seqs=8)
params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"])).clone()
outputs = llm.generate([TextPrompt(prompt="one"), TokensPrompt(prompt_token_ids=[1, 2])], params)
assert all(isinstance(output, RequestOutput) for output in outputs)
assert all(output.outputs[0].text in ("yes", "no") for output in outputs)
assert isinstance(outputs[0].outputs[0], CompletionOutput)
"""

CHAT = """
from vllm import LLM
llm = LLM(model="facebook/opt-125m")
params = llm.get_default_sampling_params()
params.max_tokens = 8
talk = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Why?"},
]
single = llm.chat(talk, sampling_params=params, use_tqdm=False)
several = llm.chat([talk] * 3, params, use_tqdm=True)
own = llm.chat(talk, params, chat_template="{{ messages[-1].content }}", use_tqdm=False)
assert (len(single), len(several), own[0].prompt) == (1, 3, "Why?")
"""

EMBED = """
from vllm import LLM
llm = LLM(model="facebook/opt-125m", runner="pooling", enforce_eager=True)
for prompt, output in zip(["one", "two"], llm.embed(["one", "two"])):
    embeds = output.outputs.embedding
    print(prompt, len(embeds), embeds[:2])
"""

BEAMS = """
from vllm import LLM
from vllm.sampling_params import BeamSearchParams
llm = LLM(model="facebook/opt-125m")
outputs = llm.beam_search([{"prompt": "one"}], BeamSearchParams(beam_width=3, max_tokens=5))
for output in outputs:
    for sequence in output.sequences:
        print(sequence.text, sequence.tokens, sequence.cum_logprob)
"""

PREFIX = """
from vllm import LLM, SamplingParams
llm = LLM(model="facebook/opt-125m", gpu_memory_utilization=0.4, enable_prefix_caching=True,
          block_size=16)
greedy = SamplingParams(temperature=0.0)
text = "one two three four " * 8
llm.generate(text, greedy)
found = llm.generate(text, greedy)[0].num_cached_tokens
assert found and llm.reset_prefix_cache()
assert not llm.generate(text, greedy)[0].num_cached_tokens
"""

NGRAM = """
from vllm import LLM, SamplingParams
llm = LLM(
    model="facebook/opt-125m",
    speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    disable_log_stats=False,
)
llm.generate(["one two one two one two one"], SamplingParams(temperature=0, max_tokens=32))
values = {metric.name: metric.value for metric in llm.get_metrics()}
print(values["vllm:spec_decode_num_draft_tokens"], values["vllm:spec_decode_num_accepted_tokens"])
"""

LORA = """
from vllm import LLM, SamplingParams
from vllm import LoRARequest
llm = LLM(model="facebook/opt-125m", enable_lora=True, max_loras=1, max_lora_rank=8,
          adapters={"sql": ADAPTER})
llm.generate("one", SamplingParams(), lora_request=LoRARequest("sql", 1, ADAPTER))
"""

ARGUMENTS = """
from dataclasses import asdict
from vllm import LLM, EngineArgs
llm = LLM(**asdict(EngineArgs(model="facebook/opt-125m", max_model_len=64)))
with LLM(model="facebook/opt-125m", deterministic=True) as other:
    print(other, other.get_tokenizer().decode([1, 2]))
"""

PARSED = """
import argparse
from vllm import LLM, EngineArgs
parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
parser.set_defaults(model="facebook/opt-125m", enforce_eager=True)
words = ["--max-model-len", "64", "--gpu-memory-utilization", "0.5", "--no-enable-prefix-caching"]
words += ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}', "--seed", "1"]
llm = LLM(**vars(parser.parse_args(words)))
parser.add_argument("--max-tokens", type=int)
again = EngineArgs.from_cli_args(parser.parse_args(words))
assert (again.max_model_len, again.seed) == (64, 1)
params = llm.get_default_sampling_params()
params.max_tokens, params.temperature = 4, 0.0
assert len(llm.generate("one", params)[0].outputs[0].token_ids) <= 4
assert llm.settings.draft_tokens == 2 and not llm.settings.enable_prefix_caching
"""

ASYNC = """
import asyncio
from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="facebook/opt-125m"))

async def main():
    async for output in engine.generate("one", SamplingParams(max_tokens=4), request_id="1"):
        last = output
    print(last.outputs[0].text, last.finished)

asyncio.run(main())
engine.shutdown()
"""

WORK = {
    "opt": OPT, "batch": BATCH, "basic": BASIC, "modules": MODULES, "chat": CHAT, "embed": EMBED,
    "beams": BEAMS, "prefix": PREFIX, "ngram": NGRAM, "lora": LORA, "arguments": ARGUMENTS,
    "parsed": PARSED, "async": ASYNC, "kv_cache": KV_CACHE,
}  # fmt: skip

# What is not built: the arguments, and the way out that is named.
UNBUILT = {
    'LLM(model="facebook/opt-6.7b", data_parallel_size=2)': "leave it out, or use 1",
    'LLM(model="facebook/opt-6.7b", quantization="ipex")': "give a model whose files are",
    'LLM(model="facebook/opt-6.7b", kv_cache_dtype="fp8_ds_mla")': "fp8_e4m3, fp8_e5m2",
    'LLM(model="facebook/opt-6.7b", speculative_config={"method": "mlp_speculator", "model": "x", '
    '"num_speculative_tokens": 2})': '{"method": "ngram", "num_speculative_tokens": 2}',
    'LLM(model="facebook/opt-6.7b", tokenizer="gpt2")': "name the model again",
    'LLM(model="facebook/opt-6.7b", enable_chunked_prefill=False)': "max_num_batched_tokens",
    'LLM(model="facebook/opt-6.7b", load_format="dummy")': "allowed: auto, safetensors",
}
