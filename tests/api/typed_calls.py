"""Calls for type checkers, never run: `tools/check_snippets.py` wants an error on the lines that
end with `# error`, and none on the others.
"""

from dataclasses import asdict
from pathlib import Path

from flyweight import (
    LLM,
    AsyncLLM,
    BeamSearchParams,
    EngineArgs,
    LoRARequest,
    SamplingParams,
    StructuredOutputsParams,
    TextPrompt,
    TokensPrompt,
)


def arguments() -> None:
    LLM("x", memory_limit="1GiB", threads=4, max_model_len="32k", adapters={"a": Path("b")})
    LLM("x", gpu_memory_utilization=0.9, dtype="half", tensor_parallel_size=1, swap_space=4)
    LLM(**asdict(EngineArgs("x", seed=0)))
    AsyncLLM("x", max_requests=2, enforce_eager=True, speculative_config={"method": "ngram"})
    LLM("x", memory_limt="1GiB")  # error
    LLM("x", threads="4")  # error
    LLM("x", dtype="int4")  # error
    AsyncLLM("x", memory_limt="1GiB")  # error
    EngineArgs("x", memory_limt="1GiB")  # error


def options() -> None:
    SamplingParams(stop=["a"], stop_token_ids=[1, 2], bad_words=["b"], logprobs=-1)
    SamplingParams(stop="a", logit_bias={1: 2.0}, allowed_token_ids=(1, 2), temperature=0)
    SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]))
    later = SamplingParams()
    later.stop, later.stop_token_ids, later.bad_words = ["a"], [1, 2], "b"
    later.stop = None
    stops: tuple[str, ...] = later.stop
    later.logits_processors = [lambda ids, row: row]
    print(stops)
    later.stop = 5  # error
    SamplingParams(stop=5)  # error
    SamplingParams(temperatur=1.0)  # error
    BeamSearchParams(beam_width="3")  # error


def prompts(llm: LLM) -> None:
    params = SamplingParams()
    llm.generate("a", params)
    llm.generate(["a", "b"], [params, params], use_tqdm=False, priority=[1, 2])
    llm.generate([1, 2, 3])
    llm.generate([[1, 2], [3]])
    llm.generate([TextPrompt(prompt="a"), TextPrompt(prompt="b", cache_salt="mine")])
    llm.generate([TokensPrompt(prompt_token_ids=[1, 2])])
    llm.generate([{"prompt": "a"}, {"prompt": "b"}])
    llm.generate("a", lora_request=LoRARequest("a", 1, "folder"))
    for out in llm.generate("a"):
        text: str = out.outputs[0].text
        ids: list[int] = out.outputs[0].token_ids
        print(text, ids)
    llm.generate(5)  # error
    llm.generate("a", use_tqmd=False)  # error


def chats(llm: LLM) -> None:
    talk = [{"role": "user", "content": "a"}]
    llm.chat(talk, chat_template_kwargs={"enable_thinking": False})
    llm.chat([talk, talk], SamplingParams(), add_generation_prompt=True)
    llm.generate(llm.conversation(talk, chat_template_kwargs={"a": 1}))
    beams = llm.beam_search([{"prompt": "a"}], BeamSearchParams(beam_width=3))
    print(beams[0].sequences[0].text, llm.embed("a")[0].outputs.embedding[0])
    llm.chat(talk, enable_thinking=False)  # error
    llm.conversation(talk, tols=[])  # error
