"""guidellm's load over /v1, by its command: `guidellm_client.py URL MODEL KEY`.

Its synthetic prompts need a tokenizer that transformers reads: one is made from this repository's
tokenizer.json, so nothing is downloaded.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOKENIZER = Path(__file__).parents[1] / "data" / "text" / "tiny-bpe" / "tokenizer.json"
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
REQUESTS, OUTPUT = 6, 12


def main() -> None:
    url, model, key = sys.argv[1:]
    command = Path(sys.executable).parent / "guidellm"
    for path in ("/v1/completions", "/v1/chat/completions"):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(TOKENIZER, folder)
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps(CONFIG))
            report = Path(folder) / "report.json"
            backend = {"kind": "openai_http", "target": url, "model": model, "api_key": key,
                       "request_format": path}  # fmt: skip
            data = {"kind": "synthetic_text", "prompt_tokens": 32, "output_tokens": OUTPUT}
            words = {
                "backend": backend,
                "tokenizer": {"kind": "huggingface_auto", "model": folder},
                "data": data,
                "profile": {"kind": "concurrent", "streams": [2]},
                "constraint": {"kind": "max_requests", "count": REQUESTS},
                "output": {"kind": "json", "path": str(report)},
            }
            given = [f"--{name}={json.dumps(value)}" for name, value in words.items()]
            subprocess.run(
                [command, "run", "--disable-console", *given], check=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
            (found,) = json.loads(report.read_text())["benchmarks"]
        done = found["requests"]
        assert len(done["successful"]) == REQUESTS and not done["errored"], done["errored"][:1]
        assert {one["output_tokens"] for one in done["successful"]} == {OUTPUT}, path
        assert all(one["time_to_first_token_ms"] > 0 for one in done["successful"])


if __name__ == "__main__":
    main()
