"""`flyweight run [MODEL] [PROMPT]`: an answer to a prompt, or a conversation without one."""

import fcntl
import json
import os
import select
import shlex
import stat
import sys
import termios
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.samplers import RUN_DEFAULTS, SAMPLING, drop_unset
from flyweight.config import Settings
from flyweight.errors import CheckpointError, RequestError, nearest
from flyweight.types import CUTS, SamplingParams

MODEL_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
PATH_BEGINS = (".", "/", "~")  # no prompt begins so

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [PROMPT]",
        help="A .gguf file, a folder or org/name; then the prompt, in quotes.",
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="File with the prompt, or with text to put before PROMPT; - is stdin.",
    ),
]
System = Annotated[
    str,
    typer.Option(
        metavar="TEXT", help="System message; without a chat template, text before the prompt."
    ),
]
Context = Annotated[
    str,
    typer.Option(
        metavar="shift|full",
        help="When a conversation fills the context: drop its oldest turns, or refuse the prompt.",
    ),
]
ShowDrafts = Annotated[bool, typer.Option(help="Show accepted draft tokens in green.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the whole memory plan.")]

ENGINE = opt.select_settings(
    "max_model_len", "memory_limit", "threads", "tensor_parallel_size", "pipeline_parallel_size",
    "enable_expert_parallel", "activations", "kv_cache_dtype", "block_size",
    "max_num_batched_tokens", "scheduler", "kv_cache", "enable_prefix_caching",
    "packed_cache", "max_kld", "speculative_config",
)  # fmt: skip


@expand
def run(
    *,
    words: Words = None,
    file: File = None,
    system: System = "",
    sampling: Annotated[Values, SAMPLING],
    engine: Annotated[Values, ENGINE],
    adapter: opt.Adapter = None,
    context: Context = "shift",
    source: opt.Source,
    files: opt.Quantization,
    device: opt.Device,
    max_num_seqs: Annotated[int, typer.Option(hidden=True)] = 1,
    as_json: opt.AsJson = False,
    show_drafts: ShowDrafts = False,
    verbose: Verbose = False,
) -> None:
    """Answer PROMPT, or hold a conversation without one.

    MODEL is a path, or a name on the Hugging Face Hub (org/name, org/name:Q4_K_M or :file.gguf);
    without it, the bundled story model answers.  The prompt may also come from a file or a pipe.
    """
    model, prompt = split_words(words or [])
    otherwise = suggest_prompt(model, prompt)
    prompt = read_prompt(prompt, file)
    if as_json and prompt is None:
        why = "--json prints one answer, and there is no prompt; give one, or -f FILE"
        raise RequestError(why)
    if show_drafts and (as_json or not engine["speculative_config"]):
        other = "excludes --json" if as_json else "needs --speculative-config, which drafts tokens"
        raise RequestError(f"--show-drafts {other}")
    settings = {
        "model": model,
        **engine,
        **source,
        **files,
        **device,
        "adapters": {"adapter": adapter} if adapter else {},
        "max_num_seqs": max_num_seqs,
        "prompt_logprob_rows": 0,  # no request has any
    }
    try:
        answer(
            prompt,
            settings,
            drop_unset(sampling),
            RunOptions(system, context, as_json, show_drafts, verbose),
        )
    except CheckpointError as error:
        raise CheckpointError(f"{error}{otherwise}") from None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an answer is requested and shown."""

    system: str = ""
    context: str = "shift"
    as_json: bool = False
    show_drafts: bool = False
    verbose: bool = False


def answer(
    prompt: str | None, settings: dict[str, Any], sampling: dict[str, Any], options: RunOptions
) -> None:
    """Checks everything that can be checked, loads the model, and answers or talks."""
    SamplingParams(**sampling)
    Settings.of(**settings)
    from flyweight.cli.commands import obey
    from flyweight.cli.session import CONTEXT, ChatSession  # this takes a moment to import
    from flyweight.cli.show import show_loading
    from flyweight.llm import LLM

    if options.context not in CONTEXT:
        raise RequestError(
            "is not valid",
            "--context",
            value=options.context,
            allowed=f"{', '.join(CONTEXT)}{nearest(options.context, CONTEXT)}",
        )
    with show_loading(verbose=options.verbose) as tell:
        llm, console = LLM(**settings, notify=tell), tell.console
    defaults = {**RUN_DEFAULTS, "max_tokens": None, **llm.read_generation_defaults()}
    if sampling.get("mirostat"):  # it cannot be combined with other cuts
        defaults = {name: value for name, value in defaults.items() if name not in CUTS}
    params = SamplingParams(**{**defaults, **sampling})
    session = ChatSession(llm, params, options.system, console, obey, options.context)
    session.show_drafts = options.show_drafts
    if prompt is None:
        session.run()
    elif options.as_json:
        said = session.conversation.prompt(prompt)
        out = llm.generate(said, session.params, use_tqdm=False, adapter=session.adapter)[0]
        print(json.dumps(asdict(out)))
    else:
        session.answer(prompt)


def split_words(words: list[str]) -> tuple[str | None, str | None]:
    """Two words are model and prompt.  One is a model when it is in the package, names something
    that is there, or looks like a path; else it is a prompt.
    """
    if len(words) > 2:
        raise RequestError(
            f"{len(words)} arguments given; allowed: MODEL and PROMPT (quote the prompt)"
        )
    if len(words) == 2:
        return words[0], words[1]
    if not words:
        return None, None
    from flyweight.describe import INSIDE

    word = words[0]
    path = word.endswith(MODEL_FILES) or (os.sep in word and not any(c.isspace() for c in word))
    named = word in INSIDE or path or os.path.exists(os.path.expanduser(word))
    return (word, None) if named else (None, word)


def suggest_prompt(model: str | None, prompt: str | None) -> str:
    """Where a single word was taken for a model because something has that name or it looks like a
    path (as and/or does), the way to say it is a prompt.
    """
    if model is None or prompt is not None:
        return ""
    if model.endswith(MODEL_FILES) or model.startswith(PATH_BEGINS):
        return ""
    return f"; to take {model!r} as a prompt: flyweight run stories {shlex.quote(model)}"


def read_prompt(prompt: str | None, file: str | None) -> str | None:
    """The prompt from the command line, `-f FILE`, or a pipe; a file's text comes in the lines
    before the prompt's.  The line end that ends a file is no part of it.
    """
    if file != "-" and (file is not None or prompt is not None):
        check_stdin()
    if file is None:
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        if prompt is not None or at_terminal:
            return prompt
    where = "stdin" if file is None else f"-f {file}"
    text = decode_text(read_raw(file, where), where)
    return f"{text}\n{prompt}" if prompt else text


def check_stdin() -> None:
    """With a prompt stdin is not read, as the parent process may never close it.  Text that
    waits there is refused rather than lost; for a pipe that may still bring some a note is printed.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return
    try:
        pipe = sys.stdin.fileno()
        waits = any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        idle = stat.S_ISFIFO(os.fstat(pipe).st_mode) and not select.select([pipe], [], [], 0)[0]
    except (OSError, ValueError):  # of a kind that holds no text: /dev/null
        return
    if waits:
        raise RequestError(
            "stdin holds text, and there is a prompt; -f - puts the text before the prompt, "
            "</dev/null leaves it unread"
        )
    if idle:
        print("note: stdin is not read when a prompt is given; -f - reads it", file=sys.stderr)


def read_raw(file: str | None, where: str) -> bytes:
    try:
        if file is not None and file != "-":
            return Path(file).read_bytes()
        if sys.stdin is None:
            raise ValueError("it is closed")
        return sys.stdin.buffer.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{where}: {reason}; give a prompt, or a text file with -f") from None


def decode_text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{where}: byte {error.start} is not UTF-8 text; allowed: UTF-8 text"
        ) from None
