"""Options of `flyweight serve` that are JSON objects: whole, key by key, and in a file."""

import json
from pathlib import Path

import pytest

from flyweight.cli.serve.choices import ServeChoice, choose
from flyweight.cli.serve.words import read
from flyweight.errors import ConfigError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def chosen(*words: object) -> ServeChoice:
    return choose(read([str(word) for word in words]))


def refusal(*words: object) -> str:
    with pytest.raises(ConfigError) as caught:
        chosen(*words)
    return str(caught.value)


def test_defaults_of_templates_and_of_sampling() -> None:
    choice = chosen(
        "--default-chat-template-kwargs", '{"enable_thinking": false, "tone": "dry"}',
        "--override-generation-config", '{"temperature": 0.3, "max_new_tokens": 9, "top_k": null}',
    )  # fmt: skip
    assert choice.server.template_defaults == {"enable_thinking": False, "tone": "dry"}
    expected = {"temperature": 0.3, "max_tokens": 9, "top_k": None}
    assert choice.server.sampling_defaults == expected
    active = {note.feature: note.effective for note in choice.requests.noted}
    assert active["--default-chat-template-kwargs"] == "enable_thinking = false, tone = 'dry'"
    assert "temperature = 0.3" in active["--override-generation-config"]
    assert not chosen().server.template_defaults and not chosen().server.sampling_defaults


def test_objects_in_parts(tmp_path: Path) -> None:
    choice = chosen(
        "--speculative_config.method", "ngram", "--speculative-config.num_speculative_tokens=3",
        "--override-generation-config.temperature", "0.3", "--override-generation-config.top_k",
        "-1", "--default-chat-template-kwargs.enable_thinking", "false",
        "--default-chat-template-kwargs.tone", "dry", "stories",
    )  # fmt: skip
    assert choice.settings.draft_tokens == 3 and choice.settings.model == "stories"
    assert choice.server.sampling_defaults == {"temperature": 0.3, "top_k": -1}
    assert choice.server.template_defaults == {"enable_thinking": False, "tone": "dry"}
    given = ("--override-generation-config", '{"temperature": 1, "top_p": 0.5}')
    part = "--override-generation-config.temperature"
    expected = {"temperature": 0.2, "top_p": 0.5}
    assert chosen(*given, part, "0.2").server.sampling_defaults == expected
    assert chosen(part, "0.2", *given).server.sampling_defaults == expected
    file = written(
        tmp_path / "a.yaml",
        "override_generation_config: {top_p: 0.5}\noverride-generation-config.temperature: 1\n",
    )
    assert chosen("--config", file, part, "0.2").server.sampling_defaults == expected
    assert chosen("--config", file).server.sampling_defaults == {**expected, "temperature": 1}
    assert chosen("--structured-outputs-config.backend", "guidance").requests.noted
    assert chosen("--compilation-config.level", "3").requests.noted
    assert chosen("--limit-mm-per-prompt.image", "0").requests.noted


PARTS = [
    (["--port.x", "3"], "--port.x: --port takes no object"),
    (["--speculative-config.method"], "--speculative-config.method: expected one argument"),
    (["--speculative-config.", "1"], "'--speculative-config.' is not valid"),
    (["--speculative-config.mehtod=ngram"], "'mehtod' is unknown (did you mean 'method'?)"),
    (
        ["--kv-transfer-config.kv_rank", "3"],
        '--kv-transfer-config = {"kv_rank": 3} is not supported',
    ),
    (["--speculativ-config.method", "x"], "(did you mean '--speculative-config'?)"),
    (["--default-chat-template-kwargs.enable_thinking", "False"], "nearest valid: false"),
    (["--hf-overrides.a.b", "1", "--hf-overrides.a", "2"], "a is an object already"),
    (["--hf-overrides.a", "1", "--hf-overrides.a.b", "2"], "a is a value already"),
    (["--default-chat-template-kwargs.a.b", "1"], "a = {'b': 1} is not valid; allowed: true"),
    (["--override-generation-config", "[", "--override-generation-config.top_k=1"], "not valid J"),
]


@pytest.mark.parametrize("words, says", PARTS, ids=[" ".join(words) for words, _ in PARTS])
def test_parts_are_read_strictly(words: list[str], says: str) -> None:
    assert says in refusal(*words)


OBJECTS = [
    ("default-chat-template-kwargs", "{", "not valid JSON"),
    ("default-chat-template-kwargs", "[1]", "a JSON object was expected"),
    ("default-chat-template-kwargs", '{"a": 1, "a": 2}', "the key 'a' appears twice"),
    ("default-chat-template-kwargs", '{"a": [1]}', "a = [1] is not valid; allowed: true, false"),
    ("default-chat-template-kwargs", '{"tools": true}', "'tools' is not a switch of a template"),
    ("default-chat-template-kwargs", '{"add_generation_prompt": true}', "is not a switch"),
    ("default-chat-template-kwargs", json.dumps({f"a{i}": 1 for i in range(33)}), "up to 32"),
    ("override-generation-config", '{"temprature": 1}', "(did you mean 'temperature'?) is unknown"),
    ("override-generation-config", '{"foo": 1, "bar": 1}', "'foo', 'bar' are unknown; allowed: "),
    ("override-generation-config", '{"temperature": -1}', "temperature = -1"),
    ("override-generation-config", '{"top_p": NaN}', "top_p"),
    ("override-generation-config", '{"max_new_tokens": "many"}', "max_tokens"),
]  # fmt: skip


@pytest.mark.parametrize("name, text, says", OBJECTS, ids=[text[:30] for _, text, _ in OBJECTS])
def test_objects_are_read_strictly(name: str, text: str, says: str) -> None:
    said = refusal(f"--{name}", text)
    assert said.startswith(f"--{name}: ") and says in said


def test_a_file_takes_what_the_command_line_takes(tmp_path: Path) -> None:
    lines = {
        "override_generation_config": "{temperature: 0.3, top_k: null}",
        "default-chat-template-kwargs": "{enable_thinking: false}",
        "default-chat-template-kwargs.tone": "dry",
        "speculative-config.method": "ngram",
        "speculative_config.num_speculative_tokens": "2",
        "log-file": "some/where.log",
        "log_file_bytes": "1MiB",
        "stream-interval": "3",
        "enable-force-include-usage": "true",
    }
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    choice = chosen("--config", written(tmp_path / "all.yaml", text))
    server = choice.server
    assert server.sampling_defaults == {"temperature": 0.3, "top_k": None}
    assert server.template_defaults == {"enable_thinking": False, "tone": "dry"}
    assert choice.settings.draft_tokens == 2
    assert (server.log_file, server.log_file_bytes) == ("some/where.log", 1 << 20)
    assert (server.stream_interval, server.enable_force_include_usage) == (3, True)
    said = refusal("--config", written(tmp_path / "no.yaml", "log-file-bytes: 1\n"))
    assert "--log-file-bytes = 1 is out of range" in said and "nearest valid: 65536" in said
