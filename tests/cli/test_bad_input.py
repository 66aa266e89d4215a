"""Bad input: one line that names the thing, the value, the range and the nearest; exit code 2; no
traceback.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewriters import encode, entry, gguf_bytes, key
from flyweight.errors import CheckpointError
from tiny_model import tiny_folder, tiny_tensors

STORIES = Path(__file__).parents[2] / "src" / "flyweight" / "assets" / "stories.gguf"


def refused(got, *words: str) -> None:
    assert got.code == 2, got
    assert got.out == ""
    (line,) = [x for x in got.err.splitlines() if " allowed (weights " not in x]  # not the plan
    assert line.startswith("error: ")
    for word in words:
        assert word in line, line


OPTIONS: list[tuple[list[str], tuple[str, ...]]] = [
    (
        ["--temperature", "-1"],
        ("temperature = -1.0", "0 (greedy), or 0.0001 to 1000000", "valid: 0.0"),
    ),
    (["--temperature", "warm"], ("--temperature = 'warm': ", "number")),
    (["--temperature", "nan"], ("temperature = nan", "a finite number")),
    (["--top-p", "0"], ("top_p = 0.0", "above 0, up to 1", "nearest valid: 0.01")),
    (["--top-p", "1.5"], ("top_p = 1.5", "nearest valid: 1.0")),
    (["--top-k", "-2"], ("top_k = -2", "nearest valid: 0")),
    (["--min-p", "2"], ("min_p = 2.0", "0 to 1")),
    (
        ["--repetition-penalty", "0"],
        ("repetition_penalty = 0.0", "allowed: 0.0001 to 10; nearest valid: 0.0001"),
    ),
    (["--seed", "99999999999999999999999"], ("seed = 9999", "nearest valid")),
    (["-n", "0"], ("max_tokens = 0", "nearest valid: 1")),
    (["--stop", ""], ("stop = ''", "allowed: strings of 1 to 1024 characters")),
    (["--max-model-len", "1"], ("max_model_len = 1", "nearest valid: 2")),
    (["--max-model-len", "x"], ("--max-model-len = 'x' is not valid", "4096 or 32k")),
    (["--threads", "0"], ("threads = 0", "1 to 256", "nearest valid: 1")),
    (["--threads", "-3"], ("threads = -3", "nearest valid: 1")),
    (["--activations", "int4"], ("activations = 'int4'", "int8, bf16, f32", "'int8'")),
    (["--kv-cache-dtype", "fp16"], ("kv_cache_dtype = 'fp16'", "did you mean 'f16'?")),
    (["--block-size", "0"], ("block_size = 0", "nearest valid: 1")),
    (["--max-num-batched-tokens", "0"], ("max_num_batched_tokens = 0", "nearest valid: 1")),
    (["--memory-limit", "lots"], ("memory_limit = 'lots'", "write 6GiB, 512MB or 80%")),
    (["--memory-limit", "101%"], ("memory_limit = '101%'", "nearest valid: 100%")),
    (["--memory-limit", "5MB"], ("memory_limit of 4.8 MiB is too small", "nearest settings")),
    (["--temprature", "1"], ("unknown option --temprature (did you mean '--temperature'?)",)),
    (["--max_model_length", "9"], ("unknown option --max_model_length", "'--max-model-len'")),
    (["--temperature"], ("--temperature", "requires an argument")),
    (["--top-k", "1.5"], ("--top-k = '1.5': a whole number expected", "run --help")),
    (["--top-p", "x"], ("--top-p = 'x': a number expected", "run --help")),
    (["a", "b", "c"], ("arguments given; allowed: MODEL and PROMPT",)),
    (["-f", "/no/such/file"], ("-f /no/such/file: No such file",)),
    (["-f", "."], ("-f .: Is a directory",)),
]


@pytest.mark.parametrize("words, says", OPTIONS, ids=[" ".join(w) for w, _ in OPTIONS])
def test_options(command, words, says) -> None:
    refused(command("run", "stories", "Once", *words), *says)


def test_commands(command) -> None:
    refused(
        command("runn"), "unknown command 'runn' (did you mean 'run'?); known: run, batch, inspect"
    )
    refused(
        command("xyzzy"), "unknown command 'xyzzy' (nearest: 'imatrix'); known: run, batch, inspect"
    )
    refused(command("serve", "--layer-precision", "4"), "unknown option '--layer-precision';")
    refused(command("--verbos"), "unknown option --verbos")
    refused(command("inspect", "--jsn"), "unknown option --jsn (did you mean '--json'?)")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("memory",), "flyweight plan memory"),
        (("memori",), "flyweight plan memory"),
        (("capacity",), "flyweight plan capacity"),
        (("bench", "capacity"), "flyweight plan capacity"),
        (("plan", "serve"), "flyweight serve"),
        (("convert",), "flyweight quantize"),
        (("list",), "flyweight models"),
        (("plan", "memori"), "memory"),
    ],
)
def test_the_nearest_command_of_any_group(command, words, meant) -> None:
    refused(command(*words), f"unknown command '{words[-1]}' (did you mean '{meant}'?); known: ")


def test_text_that_is_not_utf8(command, tmp_path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"caf\xe9")
    refused(command("run", "stories", "-f", file), "byte 3 is not UTF-8 text")
    refused(command("run", "stories", stdin=b"\xff"), "stdin: byte 0 is not UTF-8 text")


def test_prompts(command, tmp_path) -> None:
    silent = tiny_folder(tmp_path / "silent", add_bos_token=False)
    refused(
        command("run", silent, "", "-n", 3), "prompt is empty", "no BOS token", "1 token or more"
    )
    refused(
        command("run", silent, "word " * 300, "-n", 3),
        "prompt has", "tokens; allowed: 1 to 255", "max_model_len = 256",
    )  # fmt: skip
    refused(command("run", silent, "a b c d e f g h", "--max-model-len", 4), "allowed: 1 to 3")


def test_a_word_that_names_a_file_may_be_a_prompt(command, tmp_path, monkeypatch) -> None:
    """The file is taken for a model; it is none, so the error says how to say the word."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes").write_text("nothing here is a tensor\n")
    says = "flyweight run stories 'my notes'"
    refused(command("run", "my notes"), "my notes", f"; to take 'my notes' as a prompt: {says}")
    for words in (("my notes", "hi"), ("./my notes",), ("no.gguf",)):
        got = command("run", *words)
        refused(got)
        assert "as a prompt" not in got.err
    assert command("run", "stories", "my notes", "-n", 3).code == 0


def test_the_bar_goes_when_a_load_fails(command, tmp_path, monkeypatch) -> None:
    folder = tiny_folder(tmp_path / "model")

    def torn(checkpoint, plan, ops, progress, shelf) -> None:
        progress(1, 1 << 40)
        raise CheckpointError("torn")

    monkeypatch.setattr("flyweight.build.load", torn)
    monkeypatch.setenv("FORCE_COLOR", "1")  # represents a terminal
    monkeypatch.setenv("TERM", "xterm")
    got = command("run", folder, "hi")
    hidden, shown = "\x1b[?25l", "\x1b[?25h"  # the cursor
    assert got.code == 2 and hidden in got.err
    assert got.err.rindex(hidden) < got.err.rindex(shown) < got.err.index("error: torn")


# --- models ---


def cut(path: Path, keep: int) -> Path:
    path.write_bytes(path.read_bytes()[:keep])
    return path


def reworded(path: Path, old: bytes, new: bytes) -> Path:
    assert len(old) == len(new) and path.read_bytes().count(old)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    return path


def without(name: str) -> dict:
    tensors = tiny_tensors()
    del tensors[name]
    return tensors


def beside(name: str, shape: tuple[int, ...]) -> dict:
    return tiny_tensors() | {name: encode(np.ones(shape, np.float32), "f32")}


def pickled(path: Path) -> Path:
    folder = tiny_folder(path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R.")
    return folder


def empty(path: Path) -> Path:
    path.mkdir()
    return path


def bare(path: Path) -> Path:
    folder = tiny_folder(path)
    (folder / "config.json").unlink()
    return folder


def gguf(path: Path, raw: bytes) -> Path:
    path = path.with_suffix(".gguf")
    path.write_bytes(raw)
    return path


def lying(path: Path, **change: object) -> Path:
    """A config that does not say what the file holds."""
    return tiny_folder(path, change)


NORM, KEY = "model.norm.weight", "model.layers.1.self_attn.k_proj.weight"
GOOD = STORIES.read_bytes()
LLAMA = key("general.architecture", "llama")
MODELS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "nothing there": (lambda p: p / "no" / "model", ("is not a file or directory", "'stories'")),
    "an empty folder": (empty, ("no model here; looked for a .gguf file",)),
    "no config.json": (bare, ("config.json: missing",)),
    "a pickle in a folder": (pickled, ("pytorch_model.bin", "it names 'posix.system', which")),
    "a pickle": (lambda p: pickled(p) / "pytorch_model.bin", ("it names 'posix.system', which",)),
    "not a model": (lambda p: gguf(p, b"hello" * 99), ("GGUF",)),
    "an empty file": (lambda p: gguf(p, b""), ("empty",)),
    "GGUF cut in its header": (
        lambda p: gguf(p, GOOD[:1000]),
        ("cannot be true",),
    ),
    "GGUF cut in its data": (lambda p: gguf(p, GOOD[:-5000]), ("truncated or damaged",)),
    "GGUF with absurd counts": (
        lambda p: gguf(p, gguf_bytes([], [], counts=(1 << 60, 1 << 60))),
        (str(1 << 60),),
    ),
    "GGUF of another architecture": (
        lambda p: gguf(p, gguf_bytes([key("general.architecture", "llamma")], [])),
        ("general.architecture = 'llamma' is not supported; known: llama,",),
    ),
    "GGUF with a tensor past the end": (
        lambda p: gguf(p, gguf_bytes([LLAMA], [entry("a", (2, 8), 0, 1 << 40)], bytes(64))),
        ("'a'",),
    ),
    "safetensors cut": (
        lambda p: cut(tiny_folder(p) / "model.safetensors", 9000).parent,
        ("model.safetensors", "9000"),
    ),
    "safetensors without header": (
        lambda p: cut(tiny_folder(p) / "model.safetensors", 4).parent,
        ("model.safetensors",),
    ),
    "safetensors lying about an offset": (
        lambda p: (
            reworded(tiny_folder(p) / "model.safetensors", b"[0, 61824]", b"[8, 61824]").parent
        ),
        ("model.embed_tokens.weight",),
    ),
    "a missing tensor": (lambda p: tiny_folder(p, tensors=without(NORM)), (NORM, "missing")),
    "an extra tensor": (
        lambda p: tiny_folder(p, tensors=beside("surplus.weight", (3,))),
        ("surplus.weight", "not used"),
    ),
    "a wrong shape": (
        lambda p: tiny_folder(p, tensors=beside(KEY, (16, 31))),
        (KEY, "[16, 31]", "expected [16, 32]"),
    ),
    "an unknown family": (
        lambda p: lying(p, model_type="lama"),
        ("model_type = 'lama' is not supported; known: ",),
    ),
    "an encoder": (
        lambda p: lying(p, model_type="nomic_bert"),
        ("model_type = 'nomic_bert'", "encoders (BERT, Nomic and the like) are out of scope"),
    ),
    "a config without sizes": (
        lambda p: lying(p, hidden_size=None),
        ("hidden_size is missing", "a whole number from 1"),
    ),
    "a config of absurd size": (
        lambda p: lying(p, num_hidden_layers=1 << 40),
        ("num_hidden_layers",),
    ),
    "an epsilon that is not a number": (
        lambda p: lying(p, rms_norm_eps="small"),
        ("rms_norm_eps = 'small'", "a number above 0"),
    ),
    "a rope base of 0": (lambda p: lying(p, rope_theta=0), ("rope_theta = 0", "above 0")),
    "a rope factor of infinity": (
        lambda p: lying(p, rope_scaling={"type": "linear", "factor": 1e999}),
        ("factor = Infinity", "above 0"),
    ),
    "rope scaling without its settings": (
        lambda p: lying(p, rope_scaling={"rope_type": "llama3", "factor": 8}),
        ("'llama3' lacks 'low_freq_factor'",),
    ),
    "rope thresholds crossed": (
        lambda p: lying(
            p,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 1,
            },
        ),
        ("low_freq_factor = 4 must not be above high_freq_factor = 1",),
    ),
    "rope factors that are none": (
        lambda p: lying(p, rope_scaling={"rope_type": "factors", "factors": "abc"}),
        ("factors = 'abc'", "a list is needed"),
    ),
    "a config that is not JSON": (
        lambda p: [tiny_folder(p), (p / "config.json").write_text("{")] and p,
        ("config.json",),
    ),
    "a head that is missing": (
        lambda p: lying(p, tie_word_embeddings=False),
        ("lm_head.weight", "missing"),
    ),
    "no tokenizer": (
        lambda p: [tiny_folder(p), (p / "tokenizer.json").unlink()] and p,
        ("tokenizer.json",),
    ),
    "defaults out of range": (
        lambda p: tiny_folder(p, generation={"top_p": 7}),
        ("generation_config.json: top_p = 7", "nearest valid: 1.0"),
    ),
    "a failing chat template": (
        lambda p: tiny_folder(p, chat_template="{{ raise_exception('no') }}"),
        ("chat template fails: no",),
    ),
    "a chat template that is none": (
        lambda p: tiny_folder(p, chat_template="{% if %}"),
        ("chat template fails",),
    ),
    "a chat template that reaches out": (
        lambda p: tiny_folder(p, chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        ("chat template fails", "unsafe"),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(command, tmp_path, name) -> None:
    make, says = MODELS[name]
    model = make(tmp_path / "model")
    got = command("run", model, "hello", "-n", 1)
    refused(got, *says)
    if not any(part in name for part in ("template", "defaults", "tokenizer")):
        refused(command("inspect", model), *says)


def test_a_prompt_that_looks_like_a_path_says_what_to_do(command) -> None:
    refused(command("run", "./no-such-model"), "'./no-such-model' is not a file or directory")
    refused(command("run", "no-such.gguf"), "no-such.gguf")


def test_bugs_stay_visible(command, folder, monkeypatch) -> None:
    def broken(*_) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("flyweight.engine.scheduler.Scheduler.schedule", broken)
    with pytest.raises(ZeroDivisionError):
        command("run", folder, "hello")


# --- anything at all ---

NAMES = [
    "--temperature", "--top-p", "--top-k", "--min-p", "--seed", "--max-model-len", "--threads",
    "--memory-limit", "--activations", "--block-size", "-n", "--stop", "-f", "--system", "--json",
    "--offline", "-v", "--no-enable-prefix-caching", "--max-num-batched-tokens", "--jsom", "--",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "2", "0.5", "inf", "nan", "1e309", "", " ", "80%", "64MiB", "int8", "~",
         "~nobody", "stories", ".", "/", "\udc80", "x" * 5000, "9" * 30, "-", "--", "0x10", "١"]
    ),
    st.text(st.characters(exclude_characters="\0"), max_size=6),
)  # fmt: skip
WORDS = st.lists(st.one_of(st.sampled_from(NAMES), VALUES), max_size=6)


@given(words=WORDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_line_is_obeyed_or_refused(command, words) -> None:
    """Short of a bug of ours nothing raises: answers are cut to one token by the last option."""
    got = command("run", *words, "-n", "1", "--max-model-len", "64", stdin=b"Once")
    assert got.code in (0, 2)
    if got.code == 2:
        assert got.err.splitlines()[-1].startswith("error: ")


def test_json_of_errors_is_still_one_line(process, tmp_path) -> None:
    got = process("run", tmp_path / "nothing", "hello", "--json")
    refused(got, "is not a file or directory")
