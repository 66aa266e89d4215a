"""Programs written for vLLM run with the import changed and nothing else.

Nothing can be downloaded here, so each name on the Hub is in the client's cache with the files of a
tiny Llama (its config says 256 positions), as if it had been fetched.
"""

import json
import shlex
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from huggingface_hub import constants
from vllm_snippets import API_SERVER, EXPERIMENTS, FASTAPI, SERVE, UNBUILT, WORK

from flyweight import ConfigError
from flyweight.cli.serve.choices import choose
from flyweight.cli.serve.words import read
from tiny_model import tiny_adapter, tiny_folder

COMMIT = "0" * 40
NAMES = ("facebook/opt-125m", "meta-llama/Llama-2-7b-hf", "TheBloke/Llama-2-7B-Chat-GPTQ")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    for name in NAMES:
        repo = folder / f"models--{name.replace('/', '--')}"
        tiny_folder(repo / "snapshots" / COMMIT)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(COMMIT)
    tiny_adapter(folder / "adapter")
    return folder


@pytest.fixture(autouse=True)
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def ran(text: str, cache: Path) -> dict[str, Any]:
    """What is left of a program whose import was changed."""
    names: dict[str, Any] = {"__name__": "snippet", "ADAPTER": str(cache / "adapter")}
    exec(compile(text.replace("from vllm", "from flyweight"), "snippet", "exec"), names)
    return names


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


@pytest.mark.parametrize("name", WORK)
def test_a_program_runs(name: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ran(WORK[name], cache)
    if "llm" in names:
        assert names["llm"].settings.model in NAMES
    assert capsys.readouterr().out or "print" not in WORK[name]


def test_the_batch_is_answered(cache: Path) -> None:
    names = ran(WORK["batch"], cache)
    assert [output.prompt for output in names["outputs"]] == names["prompts"]
    assert names["llm"].loaded.limits.max_model_len == 4096
    requested = {row["feature"]: row["requested"] for row in names["llm"].effective}
    assert requested["gpu_memory_utilization"] == "gpu_memory_utilization = 0.9"


def test_the_service_answers(cache: Path) -> None:
    """Files that are not GPTQ are refused by name; without that argument the program serves."""
    with pytest.raises(ConfigError, match=r"quantization = 'gptq', and 0+ is not quantised"):
        ran(FASTAPI, cache)
    app = ran(FASTAPI.replace('    quantization="gptq",\n', ""), cache)["app"]
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        body = json.dumps({"prompt": "hello there", "max_tokens": 5}).encode()
        requested = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(requested, timeout=60) as answer:
            reported = json.load(answer)
    finally:
        server.should_exit = True
        thread.join()
    assert reported["tokens"] == reported["usage"]["completion_tokens"] <= 5
    assert reported["usage"]["prompt_tokens"] > 1 and isinstance(reported["text"], str)


@pytest.mark.parametrize("call", UNBUILT, ids=lambda call: call.split(",", 1)[1].strip(" )"))
def test_what_is_not_built_is_refused_in_one_line(call: str, cache: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ran(f"from vllm import LLM\n{call}", cache)
    assert UNBUILT[call] in str(caught.value) and "\n" not in str(caught.value)


def test_the_commands_are_understood() -> None:
    """`flyweight serve`, and vLLM's module under its own path, with a draft model."""
    choice = choose(read(words(SERVE)[2:]))
    assert choice.settings.model == "NousResearch/Meta-Llama-3-8B-Instruct"
    started = words(API_SERVER)[3:]
    drafting = choose(read([*started, "--api-key", "k"])).settings.speculation
    assert drafting is not None and drafting.method == "draft_model"
    assert drafting.options["model"] == "facebook/opt-125m"
    guessing = [*started[:-1], '{"method": "ngram", "num_speculative_tokens": 5}', "--api-key", "k"]
    found = choose(read(guessing)).settings
    assert (found.model, found.seed, found.memory_limit) == ("facebook/opt-6.7b", 42, "80%")
    assert found.draft_tokens == 5
    found = choose(read(words(EXPERIMENTS))).settings
    assert (found.memory_limit, found.max_num_seqs, found.draft_tokens) == ("85%", 128, 10)
