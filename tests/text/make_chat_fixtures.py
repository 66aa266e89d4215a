"""What transformers makes of chat templates, for test_chat.py.

    python tests/text/make_chat_fixtures.py DATA OUT_DIR

Needs transformers; DATA holds the corpora.  Writes golden.json, and Qwen3's template beside it,
into OUT_DIR (tests/data/text/chat).
"""

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parents[1] / "data" / "text" / "chat"
CONFIGS = {  # templates that stay in the corpora, but for the first
    "qwen3": "tokenizer-qwen2/qwen3_tokenizer_config.json",
    "qwen2.5": "tokenizer-qwen2/qwen2.5_tokenizer_config.json",
    "phi3": "tokenizers-hf-json/phi-3-mini/tokenizer_config.json",
}
USER, SYSTEM = {"role": "user", "content": "What is 2 + 2?"}, {"role": "system", "content": "Be é."}
TALKS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([USER], {}),
    ([SYSTEM, {"role": "user", "content": "Two\n\n  lines. é ☃ <b>&</b> <|im_start|>"}], {}),
    (
        [
            USER,
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFour"},
            {"role": "user", "content": " Three? "},
        ],
        {},
    ),
    ([SYSTEM, USER, {"role": "assistant", "content": "4"}, USER], {"enable_thinking": False}),
]
ODD = [
    SYSTEM,
    {"role": "skip", "content": "x"},
    {"role": "user", "content": [{"type": "text", "text": "<a> & é"}]},
    {"role": "assistant", "content": "ok"},
]


def main(data: Path, out: Path) -> None:
    templates = {"plain": (HERE / "plain.jinja").read_text(encoding="utf-8")}
    for name, file in CONFIGS.items():
        templates[name] = json.loads((data / file).read_text(encoding="utf-8"))["chat_template"]
    out.mkdir(parents=True, exist_ok=True)
    (out / "qwen3.jinja").write_text(templates["qwen3"], encoding="utf-8")
    library = Tokenizer(models.BPE(vocab={"<|start|>": 0, "<|end|>": 1}, merges=[]))
    speaker = PreTrainedTokenizerFast(
        tokenizer_object=library, bos_token="<|start|>", eos_token="<|end|>"
    )
    cases = []
    for name, template in templates.items():
        talks = [*TALKS, (ODD, {"mood": "odd"})] if name == "plain" else TALKS
        for talk, variables in talks:
            text = speaker.apply_chat_template(
                talk,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                **variables,
            )
            cases.append({"template": name, "messages": talk, "variables": variables, "text": text})
    text = json.dumps(cases, ensure_ascii=False, indent=1)
    (out / "golden.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
