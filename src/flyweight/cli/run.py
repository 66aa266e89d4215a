"""`flyweight run [MODEL] [PROMPT]`: an answer to a prompt, or an interactive session without one."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flyweight.cli import options as opt
from flyweight.cli.session import Session, stream
from flyweight.cli.show import Loading
from flyweight.errors import RequestError
from flyweight.llm import LLM
from flyweight.types import SamplingParams

CREATIVE = {"temperature": 0.8, "top_p": 0.95}  # where the checkpoint has no opinion; what llama.cpp and Ollama do


def run(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [PROMPT]")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the prompt from a file; - is stdin.")] = None,
    system: Annotated[str, typer.Option(help="A system message, or text put before every prompt.")] = "",
    max_tokens: Annotated[int | None, typer.Option("-n", "--max-tokens", help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this much probability.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many tokens; 0 keeps all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens this likely relative to the best.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 discourages repeats.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's own end.")] = False,
    max_model_len: opt.MaxModelLen = None,
    memory_limit: opt.MemoryLimit = "80%",
    threads: opt.Threads = None,
    activations: opt.Activations = "int8",
    kv_cache_dtype: opt.KVDtype = "f16",
    block_size: opt.BlockSize = 32,
    enable_prefix_caching: opt.Prefix = True,
    offline: opt.Offline = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show the whole memory plan.")] = False,
) -> None:
    """Write an answer to PROMPT, or talk when there is none.  MODEL is a path; left out, the story model inside."""
    model, prompt = model_and_prompt(words or [])
    prompt = read_prompt(prompt, file)
    sampling = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    given = {k: v for k, v in sampling.items() if v is not None}
    rest = {"max_tokens": max_tokens, "seed": seed, "stop": tuple(stop or ()), "ignore_eos": ignore_eos}
    SamplingParams(**given, **rest)  # refuse bad values before a model is loaded
    console = Console(stderr=True)
    chosen = opt.settings(
        model=model,
        max_model_len=max_model_len,
        memory_limit=memory_limit,
        threads=threads,
        activations=activations,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        max_num_seqs=1,
        enable_prefix_caching=enable_prefix_caching,
        offline=offline,
    )
    llm = LLM(notify=Loading(console, verbose), settings=chosen)
    params = SamplingParams(**{**CREATIVE, **llm.generation_defaults(), **given, **rest})
    session = Session(llm, params, system, console)
    if prompt is None:
        session.talk()
    elif as_json:
        out = llm.generate(session.opening(prompt), params, use_tqdm=False)[0]
        print(json.dumps(asdict(out)))
    else:
        stream(llm, session.opening(prompt), params, console)


def model_and_prompt(words: list[str]) -> tuple[str | None, str | None]:
    """One word is a model when it names a file, a directory or the story model, else a prompt; two are model, prompt."""
    if len(words) > 2:
        raise RequestError(f"{len(words)} arguments given; allowed: MODEL and PROMPT (quote the prompt)", "prompt")
    if len(words) == 2:
        return words[0], words[1]
    if not words:
        return None, None
    (word,) = words
    named = word == "stories" or word.endswith(".gguf") or (" " not in word and Path(word).exists())
    return (word, None) if named else (None, word)


def read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """The prompt from the command line, `-f FILE`, or a pipe; a file's text comes before the prompt."""
    if file is not None:
        text = sys.stdin.read() if str(file) == "-" else _read(file)
        return text + (prompt or "")
    if prompt is None and not sys.stdin.isatty():
        return sys.stdin.read().rstrip("\n")
    return prompt


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"-f {file}: {error}", "file") from None
