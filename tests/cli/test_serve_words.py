"""The words of `flyweight serve`: what they come to, and what is refused, without a server."""

import json
import re
from pathlib import Path

import pytest

from flyweight.cli.serve.choices import ServeChoice, choose
from flyweight.cli.serve.options import GROUPS, OPTIONS, SUPPORTS
from flyweight.cli.serve.words import read
from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
from flyweight.validation.setting import find_setting

# from the documents people start from
VLLM_SERVE = "NousResearch/Meta-Llama-3-8B-Instruct --dtype auto --api-key token-abc123"
API_SERVER = "--host 0.0.0.0 --port 8000 --model facebook/opt-6.7b --seed 42 -tp 1"
DRAFT_MODEL = '{"model": "facebook/opt-125m","num_speculative_tokens": 5}'


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def chosen(*words: object) -> ServeChoice:
    return choose(read([str(word) for word in words]))


def refusal(*words: object) -> str:
    with pytest.raises(ConfigError) as caught:
        chosen(*words)
    return str(caught.value)


def test_nothing_said_is_the_model_inside_with_the_defaults() -> None:
    choice = chosen()
    assert choice.settings == Settings() and choice.server == ServerSettings()
    assert not choice.requests.given and not choice.requests.noted


def test_the_commands_people_know() -> None:
    choice = chosen(*VLLM_SERVE.split())
    assert choice.settings.model == "NousResearch/Meta-Llama-3-8B-Instruct"
    assert choice.server.keys == ("token-abc123",)
    words = [*API_SERVER.split(), "--gpu_memory_utilization", "0.8"]
    speculating = [*words, "--speculative_config", DRAFT_MODEL]
    said = refusal(*speculating)
    assert "--host = '0.0.0.0'" in said and "--api-key" in said
    choice = chosen(*words, "--api-key", "k")
    assert choice.settings.model == "facebook/opt-6.7b" and choice.settings.seed == 42
    assert choice.settings.memory_limit == "80%"
    assert (choice.server.host, choice.server.port) == ("0.0.0.0", 8000)


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"config"}))
def test_both_spellings(name: str) -> None:
    """An option with underscores means what it means with dashes."""
    flag = OPTIONS[name]
    value = [] if flag.kind == "switch" else ["1"]
    old = read([f"--{name}", *value])
    assert name in old.options
    assert old == read([f"--{name.replace('-', '_')}", *value])
    if flag.kind != "switch":
        assert read([f"--{name.replace('-', '_')}=1"]).options == old.options


def test_every_setting_has_an_option() -> None:
    """And every option that sets a field sets one that exists."""
    sets = {flag.sets for group in GROUPS.values() for flag in group if flag.sets}
    settings = {f"engine.{name}" for name in Settings.__slots__}
    server = {f"server.{name}" for name in ServerSettings.__slots__}
    assert sets <= settings | server
    own = "keys key_files chat_template model_defaults sampling_defaults template_defaults parents"
    assert {f"server.{x}" for x in own.split()} == server - sets
    assert not {flag.name for flag in OPTIONS.values() if not flag.help}


def test_every_option_is_in_the_page_about_serving() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = [flag for group in GROUPS.values() for flag in group]
    reported = set(re.findall(r"--[a-z][a-z-]*", page))
    assert {flag.spellings[0] for flag in rows} - reported == set()
    tables = set(re.findall(r"--[a-z][a-z-]*", page.split("## Options")[1].split("**Refused")[0]))
    known = {s for flag in OPTIONS.values() for s in flag.spellings}
    assert {name.replace("--no-", "--") for name in tables} <= known


def test_the_table_of_limits_says_what_is_so() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    reported = dict(re.findall(r"^\| `--([a-z-]+)`.*? \| (.*? \| .*?) \|", page, re.MULTILINE))
    for flag in GROUPS["Limits"]:
        value, allowed = reported[flag.name].replace(",", "").split(" | ")
        assert value == f"{flag.default}{' s' * (flag.kind == 'number')}", flag.name
        found = find_setting(ServerSettings.__dataclass_fields__[flag.sets.removeprefix("server.")])
        low, high = found.low, found.high
        end = re.fullmatch(r"\d+ to (\d+)( KiB)?", allowed)
        assert (end is None) == (high is None), flag.name
        if end:
            assert int(end[1]) * (1024 if end[2] else 1) == high
            beyond = f"--{flag.name} = {high + 1} is out of range"
            assert beyond in refusal(f"--{flag.name}", high + 1)
        least = chosen(f"--{flag.name}", low).server
        assert getattr(least, flag.sets.removeprefix("server.")) == low
        assert f"nearest valid: {low}" in refusal(f"--{flag.name}", low - 1)


def test_lengths_and_shares() -> None:
    for text, tokens in (("32k", 32000), ("32K", 32768), ("4096", 4096), ("1.5k", 1500)):
        assert chosen("--max-model-len", text).settings.max_model_len == tokens
    assert chosen("--max-model-len", "auto").settings.max_model_len is None
    assert chosen("--gpu-memory-utilization", "0.85").settings.memory_limit == "85%"
    assert chosen("--gpu-memory-utilization=1").settings.memory_limit == "100%"
    assert chosen("--kv-cache-memory-bytes", "1GiB").settings.kv_cache_memory_bytes == 1 << 30
    assert chosen("--max-body-bytes", "2MiB").server.max_body_bytes == 2 << 20


@pytest.mark.parametrize("requested, computed", [
    ("auto", "int8"), ("half", "bf16"), ("float16", "bf16"), ("bfloat16", "bf16"),
    ("float", "f32"), ("float32", "f32"),
])  # fmt: skip
def test_dtypes_of_vllm(requested: str, computed: str) -> None:
    choice = chosen("--dtype", requested)
    assert choice.settings.activations == computed
    (note,) = choice.requests.noted
    assert note.feature == "--dtype" and note.effective in ("auto", f"activations {computed}")
    assert ("float16 is computed as bfloat16" in note.reason) == (requested in ("half", "float16"))


def test_what_changes_no_answer_is_taken() -> None:
    words = "--enforce-eager --trust-remote-code --no-enforce-eager --deterministic"
    active = {note.feature: note.effective for note in chosen(*words.split()).requests.noted}
    assert active["--deterministic"] == "always"
    assert active["--trust-remote-code"] == "never used"


def test_several_words() -> None:
    choice = chosen("--served-model-name", "a", "b", "--api-key", "first", "--api-key", "second")
    assert choice.server.served_model_name == ("a", "b")
    assert choice.server.keys == ("first", "second")
    assert "first" not in json.dumps(dict(choice.requests.given))


def test_adapters() -> None:
    given = "--enable-lora", "--lora-modules", "a=/x/y", '{"name": "b", "path": "/z"}'
    assert chosen(*given).settings.adapters == {"a": "/x/y", "b": "/z"}
    assert "needs --enable-lora" in refusal(*given[1:])
    named = '{"name": "c", "path": "/z", "base_model_name": "llama"}'
    assert chosen(*given, named).server.parents == {"c": "llama"}
    odd = '{"name": "c", "path": "/z", "rank": 8}'
    assert "'rank' is unknown; known: name, path, base_model_name" in refusal(*given, odd)
    assert "are text" in refusal(*given, '{"name": "c", "path": "/z", "base_model_name": 5}')
    assert "'c=' is not valid; allowed: NAME=FOLDER" in refusal(*given, "c=")
    assert "'a' is given twice" in refusal(*given, "a=/other")
    assert "--lora-modules NAME=FOLDER" in refusal("--enable-lora")


def test_speculation_is_what_the_drafter_does() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
    got = chosen("--speculative-config", text).settings.speculative_config
    assert got == json.loads(text) | {"prompt_lookup_min": 2}


SPECULATIONS = [
    ("{", "--speculative-config: not valid JSON"),
    ("[]", "a JSON object was expected"),
    ("{}", "num_speculative_tokens is missing; allowed: 1 to 64"),
    ('{"num_speculative_tokens": 0}', "num_speculative_tokens = 0 is out of range"),
    ('{"num_speculative_tokens": 65}', "nearest valid: 64"),
    ('{"num_speculative_tokens": true}', "num_speculative_tokens = true is not valid"),
    ('{"num_speculative_tokens": 5, "mehtod": "ngram"}', "(did you mean 'method'?)"),
    ('{"num_speculative_tokens": 5, "method": "mlp_speculator"}', "is not supported yet"),
    ('{"num_speculative_tokens": 5, "method": "eagle3"}', "model is missing"),
    ('{"num_speculative_tokens": 5, "method": "ngrm"}', "(did you mean 'ngram'?)"),
    (
        '{"num_speculative_tokens": 5, "prompt_lookup_max": 2, "prompt_lookup_min": 3}',
        "prompt_lookup_min = 3 is out of range; allowed: a whole number, 1 to 2",
    ),
    ('{"num_speculative_tokens": 5, "revision": "main"}', "does not apply to ngram; leave it out"),
]


@pytest.mark.parametrize("text, says", SPECULATIONS)
def test_speculation_is_read_strictly(text: str, says: str) -> None:
    assert says in refusal("--speculative-config", text)


REFUSED = [
    (["--scheduling-policy", "fifo"], "--scheduling-policy = 'fifo'", "allowed: priority, fcfs"),
    (["--scheduling-policy", "fcfs", "--max-priority", "3"], "--max-priority", "contradict"),
    (["--max-priority", "-1"], "--max-priority = -1", "0 to 2147483647"),
    (["--served-model-name", "a", "b", "a"], "--served-model-name = 'a' is given twice", "once"),
    (["-dp", "2"], "--data-parallel-size = 2 is not supported", "--threads"),
    (["-tp", "65"], "--tensor-parallel-size = 65 is out of range", "1 to 64"),
    (["-pp", "0"], "--pipeline-parallel-size = 0", "nearest valid: 1"),
    (["--no-deterministic"], "--no-deterministic is not supported", "leave it out"),
    (["--cpu-offload-gb", "4"], "--cpu-offload-gb = 4", "--memory-limit"),
    (["--quantization", "ipex"], "--quantization = 'ipex'", "allowed: gguf, none"),
    (["--load-format", "npcache"], "--load-format = 'npcache'", "safetensors, gguf, pt"),
    (["-q", "gguf", "--load-format", "pt"], "--quantization gguf", "contradict"),
    (["-q", "awq", "--load-format", "bitsandbytes"], "--load-format bitsandbytes", "contradict"),
    (["--kv-cache-dtype", "fp4"], "--kv-cache-dtype = 'fp4'", "int4, fp8_e4m3, fp8_e5m2, "),
    (["--kv-cache-dtype", "FP8"], "--kv-cache-dtype = 'FP8'", "fp8 (did you mean 'fp8'?)"),
    (["--dtype", "fp16"], "--dtype = 'fp16'", "nearest valid: bfloat16"),
    (["--tokenizer", "x"], "--tokenizer = x is not supported", "from the folder of the weights"),
    (["--no-enable-chunked-prefill"], "--no-enable-chunked-prefill", "--max-num-batched-tokens"),
    (["--otlp-traces-endpoint", "x"], "--otlp-traces-endpoint = 'x' is not", "http://localhost"),
    (["--price-per-kwh", "-1"], "--price-per-kwh = -1.0 is out of range", "nearest valid: 0"),
    (["--price-input", "1e9"], "--price-input = 1000000000.0 is out", "nearest valid: 999999999"),
    (["--price-per-hour", "cheap"], "--price-per-hour = 'cheap' is not valid", "a number"),
    (["--max-prompts", "0"], "--max-prompts = 0 is out of range", "nearest valid: 1"),
    (["--port", "70000"], "--port = 70000", "nearest valid: 65535"),
    (["--port", "x"], "--port = 'x' is not valid", "a whole number"),
    (["--shutdown-timeout", "-1"], "--shutdown-timeout = -1.0 is out of range", "nearest valid: 1"),
    (["--request-timeout", "nan"], "--request-timeout = 'nan' is not valid", "a number"),
    (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization = 1.5", "nearest valid: 1.0"),
    (["--max-model-len", "long"], "--max-model-len = 'long' is not valid", "32k"),
    (["--max-logprobs", "65"], "--max-logprobs = 65", "nearest valid: 64"),
    (["--api-key", ""], "--api-key = ''", "one character or more"),
    (["--api-key-file", "/none"], "--api-key-file /none", "No such file"),
    (["--host", "0.0.0.0"], "--host = '0.0.0.0' accepts clients of the network", "--insecure"),
    (["--max-modl-len", "5"], "unknown option '--max-modl-len'", "'--max-model-len'"),
    (["--port"], "--port: expected one argument", "--help"),
    (["--activations", "int4"], "--activations = 'int4'", "int8, bf16, f32"),
    (["--dtype", "float32", "--activations", "bf16"], "--dtype float32", "contradict"),
    (["--memory-limit", "1GiB", "--gpu-memory-utilization", "0.5"], "exclude each", "one of them"),
]  # fmt: skip


@pytest.mark.parametrize("words, says, way_out", REFUSED, ids=[" ".join(r[0]) for r in REFUSED])
def test_refusals_name_the_option_and_the_way_out(words, says: str, way_out: str) -> None:
    said = refusal(*words)
    assert says in said and way_out in said and "\n" not in said


def test_all_refusals_are_reported_at_once() -> None:
    said = refusal("-dp", "2", "--quantization", "fp7", "--port", "x")
    for name in ("--data-parallel-size", "--quantization", "--port"):
        assert name in said


def test_each_refusal_is_a_line(command, tmp_path: Path) -> None:
    file = written(tmp_path / "bad.yaml", "prot: 1\nseed: 3\nignore-unknown-fields: 1\n")
    got = command(
        "serve", "--foo", "3", "--max-modl-len", "5", "stories", "-dp", "2", "--port",
        "--ignore-unknown-fields=true", "--api-key", "-hidden", "--max-prompts", "0",
        "--max-choices=900", "--block-size", "0", "--threads", "-3", "--config", file,
        "--served_model_name",
    )  # fmt: skip
    lines = got.err.splitlines()
    assert got.code == 2 and all(line.startswith("error: ") for line in lines)
    for says in (
        "unknown option '--foo';", "'--max-modl-len' (did you mean '--max-model-len'?)",
        "--data-parallel-size = 2", "--port: expected one argument",
        "'--ignore-unknown-fields=true': --ignore-unknown-fields takes no value; allowed: "
        "--ignore-unknown-fields, --no-ignore-unknown-fields",
        "--api-key: expected at least one argument; one that begins with - is written --api-key=-",
        "--served-model-name: expected at least one", "--max-prompts = 0", "--max-choices = 900",
        "--block-size = 0", "--threads = -3 is out of range", "'prot' (did you mean 'port'?)",
        "ignore-unknown-fields = 1 is not valid",
    ):  # fmt: skip
        assert len([line for line in lines if says in line]) == 1, says
    assert len(lines) == 13 and "hidden" not in got.err


def test_values_that_look_like_options() -> None:
    assert chosen("--api-key=-k").server.keys == ("-k",)
    assert "--max-prefill-delay = -1.5 is out of range" in refusal("--max-prefill-delay", "-1.5")
    assert "--max-prefill-delay = -0.5 is out of range" in refusal("--max-prefill-delay", "-.5")
    assert chosen("--chat-template", "-{{ messages }} x").server.chat_template
    assert chosen("--", "--model").settings.model == "--model"
    assert chosen("-qgguf", "-q=gguf").settings.load_format == "gguf"
    assert chosen("--load-format", "pt").settings.load_format == "pt"


@pytest.mark.parametrize(
    "words", [["some/model", "--tokenizer", "some/model"],
              ["--model", "some/model", "--tokenizer=some/model"]],
)  # fmt: skip
def test_a_tokenizer_that_is_the_models_own_is_taken(words: list[str]) -> None:
    (note,) = chosen(*words).requests.noted
    assert (note.feature, note.effective) == ("--tokenizer", "the model's own")
    assert "some" not in note.requested, "clients learn no folder"
    assert "--tokenizer = other is not" in refusal("some/model", "--tokenizer", "other")


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS)
def test_no_option_is_ignored(support) -> None:
    """What asks for what is so anyway is in the ledger; everything else is refused by name."""
    for value in support.accepted:
        words = {"on": [f"--{support.name}"], "off": [f"--no-{support.name}"]}
        said = words.get(value, [f"--{support.name}", "3" if " " in value else value])
        (note,) = chosen(*said).requests.noted
        assert (note.feature, note.effective) == (f"--{support.name}", support.active)
    if support.kind != "switch" and support.active != "no effect":
        said = refusal(f"--{support.name}", "nonsense")
        assert f"--{support.name} = {'...' if support.name == 'hf-token' else 'nonsense'}" in said
    elif support.kind == "switch" and len(support.accepted) < 2:
        other = f"--no-{support.name}" if "on" in support.accepted else f"--{support.name}"
        assert f"{other} is not supported" in refusal(other)
    assert support.instead and support.why


# --- a file of options ---


def test_a_file_and_a_command_line_that_wins(tmp_path: Path) -> None:
    file = written(
        tmp_path / "serve.yaml",
        "model: one\nserved-model-name: [a, b]\nport: 1234\nmax_num_seqs: 8\n"
        "ignore-unknown-fields: true\nmax-model-len: 32k\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 2}\n",
    )
    choice = chosen("--config", file, "--port", "4321")
    assert choice.settings.model == "one" and choice.settings.max_num_seqs == 8
    assert choice.settings.draft_tokens == 2 and choice.settings.max_model_len == 32000
    assert choice.server.port == 4321 and choice.server.served_model_name == ("a", "b")
    assert choice.server.ignore_unknown_fields
    assert chosen("two", "--config", file).settings.model == "two"


FILES = [
    ("prot: 1", "unknown option 'prot' (did you mean 'port'?)"),
    ("config: other.yaml", "a file cannot name another: 'config'"),
    ("prot: 1\nignore-unknown-fields: 1", "'prot' (did you mean 'port'?); --config"),
    (
        "prot: 1\nignore-unknown-fields: 1",
        "ignore-unknown-fields = 1 is not valid; allowed: true or false",
    ),
    ("- port", "options and their values were expected"),
    ("port: [1", "line 2: not YAML"),
    ("ignore-unknown-fields: 1", "ignore-unknown-fields = 1 is not valid; allowed: true or false"),
    ("port: null", "port = None is not valid"),
    ("!!python/object/apply:os.system [true]", "not YAML"),
    ("port: x", "--port = 'x' is not valid"),
    ("port.x: 1", "--port.x: --port takes no object"),
    ("override-generation-config.top_k: 2020-01-01", "is not valid; allowed: text or a number"),
    ("data-parallel-size: 4", "--data-parallel-size = 4 is not supported"),
]


@pytest.mark.parametrize("text, says", FILES, ids=[text for text, _ in FILES])
def test_files_are_read_strictly(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal("--config", written(tmp_path / "bad.yaml", text + "\n"))


def test_uvicorns_lines_of_access_are_ours() -> None:
    assert chosen("--uvicorn-log-level", "info").server.enable_log_requests
    for level in ("warning", "error", "critical"):
        choice = chosen("--uvicorn-log-level", level)
        assert not choice.server.enable_log_requests
        assert choice.requests.noted[0].effective == "no line a request"
        assert chosen(
            "--enable-log-requests", "--uvicorn-log-level", level
        ).server.enable_log_requests
    assert not chosen("--disable-uvicorn-access-log").server.enable_log_requests
    assert chosen("--no-disable-uvicorn-access-log").server.enable_log_requests
    assert "nearest valid: info" in refusal("--uvicorn-log-level", "debug")
    both = refusal("--disable-uvicorn-access-log", "--enable-log-requests")
    assert "exclude each other" in both


def test_what_vllm_is_often_started_with() -> None:
    words = (
        "--disable-log-stats --enable-auto-tool-choice --tool-call-parser hermes --max-log-len 100 "
        "--enable-prompt-tokens-details --api-server-count 1 --distributed-executor-backend uni "
        '--guided-decoding-backend auto --structured-outputs-config {"backend":"auto"} '
        "--no-enable-prompt-embeds --disable-frontend-multiprocessing --uvicorn-log-level=warning"
    )
    said = refusal(*words.split())
    assert said.count("is not supported") == 1
    assert "--disable-frontend-multiprocessing is not supported" in said
    chosen(*words.replace("--disable-frontend-multiprocessing", "").split())


def test_the_command_shows_help_and_refusals(command) -> None:
    got = command("serve", "--help")
    assert got.code == 0 and "--port PORT " in got.out and "--api-key KEY ... " in got.out
    assert got.out.startswith("Usage: flyweight serve [OPTIONS] [MODEL]...\n")
    got = command("serve", "-dp", "2")
    assert got.code == 2 and got.err.startswith("error: --data-parallel-size = 2")
