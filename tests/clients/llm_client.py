"""Simon Willison's `llm` over /v1, by its command: `llm_client.py URL MODEL KEY`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = """- model_id: {model}
  model_name: {model}
  api_base: {url}/v1
  api_key_name: flyweight
  supports_schema: true
  supports_tools: true
- model_id: {model}-text
  model_name: {model}
  api_base: {url}/v1
  api_key_name: flyweight
  completion: true
"""
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "12")


def llm(home: Path, *words: str, fails: bool = False) -> str:
    """What the command prints, on stderr where it fails."""
    command = Path(sys.executable).parent / "llm"
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    done = subprocess.run([command, *words], text=True, capture_output=True, env=environment)
    assert (done.returncode != 0) is fails, done.stderr
    return done.stderr if fails else done.stdout.rstrip("\n")


def read_prompt_tokens(home: Path) -> int:
    """Of the last request, as `llm` has logged it."""
    (last,) = json.loads(llm(home, "logs", "-n", "1", "--json"))
    return int(last["input_tokens"])


def main() -> None:
    url, model, key = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "extra-openai-models.yaml").write_text(MODELS.format(model=model, url=url))
        llm(home, "keys", "set", "flyweight", "--value", key)
        assert model in llm(home, "models")
        ask = ("-m", model, *GREEDY)
        whole = llm(home, "A cat sat.", *ask, "--no-stream")
        assert whole and llm(home, "A cat sat.", *ask) == whole
        before = read_prompt_tokens(home)
        assert llm(home, "A cat sat.", *ask, "-s", "Be kind.")
        assert read_prompt_tokens(home) > before  # the answer may be the same
        assert llm(home, "-c", "And then?", *GREEDY)
        assert llm(home, "Once upon a time", "-m", f"{model}-text", *GREEDY)
        shaped = ("--schema", "asleep bool, old bool", "-o", "temperature", "0")
        assert set(json.loads(llm(home, "A cat", "-m", model, *shaped))) == {"asleep", "old"}
        assert llm(home, "A cat sat.", *ask, "-T", "llm_version")
        llm(home, "keys", "set", "flyweight", "--value", "wrong")
        assert "key" in llm(home, "A cat sat.", *ask, fails=True)


if __name__ == "__main__":
    main()
