"""What transformers makes of chat templates, for test_chat.py.

    python tests/text/make_chat_fixtures.py DATA OUT_DIR

Needs transformers and gguf; DATA holds the corpora.  Writes golden.json, and Qwen3's template
next to it, into OUT_DIR (tests/data/text/chat).  Where transformers raises, the text is null: both
refuse.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parents[1] / "data" / "text" / "chat"
OWN = ("plain", "constructs", "turns")
CONFIGS = {  # templates that stay in the corpora, except for the first
    "qwen3": "tokenizer-qwen2/qwen3_tokenizer_config.json",
    "qwen2.5": "tokenizer-qwen2/qwen2.5_tokenizer_config.json",
    "phi3": "tokenizers-hf-json/phi-3-mini/tokenizer_config.json",
}
GGUF = {"phi3 gguf": "tokenizers-ggml-vocab/ggml-vocab-phi-3.gguf"}

Talk = list[dict[str, Any]]
USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "Be é."}
FOUR = {"role": "assistant", "content": "4"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place,\n  now. ",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'Such as "Zürich" & <others>'},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "when": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
ASKED = {"role": "user", "content": "Is it raining in Zürich, and what time is it?"}
CALLS = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "\nTwo tools will do.\n",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": {"city": "Zürich", "days": [1, 2], "when": None},
            },
        },
        {"id": "call00002", "type": "function", "function": {"name": "clock", "arguments": {}}},
    ],
}
RESULTS: Talk = [
    {
        "role": "tool", "name": "get_weather", "tool_call_id": "call00001",
        "content": '{"rain": true, "mm": 2.5}',
    },
    {"role": "tool", "name": "clock", "tool_call_id": "call00002", "content": "12:00 <é>"},
]  # fmt: skip
THOUGHT = {"role": "assistant", "content": "It rains.", "reasoning_content": "2.5 mm is rain."}
TOOLS = {"tools": [WEATHER, CLOCK]}
FIRST_CALL: dict[str, Any] = CALLS["tool_calls"][0]  # type: ignore[index]
NODES = {"tree": [{"name": "a", "kids": [{"name": "b", "kids": []}, {"name": "c", "kids": []}]}]}
TALKS: dict[str, tuple[Talk, dict[str, Any]]] = {
    "one": ([USER], {}),
    "system": (
        [SYSTEM, {"role": "user", "content": "Two\n\n  lines. é ☃ <b>&</b> <|im_start|>"}], {},
    ),
    "turns": (
        [
            USER,
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFour"},
            {"role": "user", "content": " Three? "},
        ],
        {},
    ),
    "no thinking": ([SYSTEM, USER, FOUR, USER], {"enable_thinking": False}),
    "thinking": ([SYSTEM, USER, FOUR, USER], {"enable_thinking": True}),
    "no prompt": ([SYSTEM, USER, FOUR], {"add_generation_prompt": False}),
    "tools": ([SYSTEM, ASKED], TOOLS),
    "tools without system": ([ASKED], TOOLS),
    "calls": ([SYSTEM, ASKED, CALLS], TOOLS | {"add_generation_prompt": False}),
    "results": ([ASKED, CALLS, *RESULTS], TOOLS),
    "answered": ([SYSTEM, ASKED, CALLS, *RESULTS, THOUGHT, USER], TOOLS),
    "no tools left": ([SYSTEM, ASKED, CALLS, *RESULTS, THOUGHT, USER], {}),
    "reasoning": ([USER, THOUGHT, USER], {}),
    "last reasoning": ([USER, {**THOUGHT, "reasoning": "x"}], {"add_generation_prompt": False}),
    "thinking field": ([USER, {"role": "assistant", "content": "ok", "thinking": "why"}, USER], {}),
    "bad call id": ([ASKED, {**CALLS, "tool_calls": [{**FIRST_CALL, "id": "x"}]}], TOOLS),
    "two users": ([USER, USER], {}),
    "assistant first": ([FOUR, USER], {}),
    "odd role": ([USER, {"role": "narrator", "content": "Meanwhile"}, FOUR], {}),
    "odd": (
        [
            SYSTEM,
            {"role": "skip", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "<a> & é"}]},
            {"role": "assistant", "content": "ok"},
        ],
        {"mood": "odd"},
    ),
    "parts": (
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "See?"}]}], {},
    ),
    "documents": (
        [USER],
        {"documents": [{"title": "T", "text": "x" * 30}, {"title": "U", "text": "y"}], **NODES},
    ),
    "no content": ([USER, {"role": "assistant", "content": None}, USER], {}),
    "go on": (
        [SYSTEM, USER, {"role": "assistant", "content": "The answer is "}],
        {"continue_final_message": True, "add_generation_prompt": False},
    ),
    "go on with parts": (
        [USER, {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}],
        {"continue_final_message": True, "add_generation_prompt": False},
    ),
    "go on thinking": (
        [USER, {"role": "assistant", "content": "", "reasoning_content": "Let me"}],
        {"continue_final_message": "reasoning_content", "add_generation_prompt": False},
    ),
}  # fmt: skip


def templates(data: Path) -> dict[str, str]:
    found = {name: (HERE / f"{name}.jinja").read_text(encoding="utf-8") for name in OWN}
    for name, file in CONFIGS.items():
        found[name] = json.loads((data / file).read_text(encoding="utf-8"))["chat_template"]
    for name, file in GGUF.items():
        found[name] = str(GGUFReader(data / file).fields["tokenizer.chat_template"].contents())
    return found


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    library = Tokenizer(models.BPE(vocab={"<|start|>": 0, "<|end|>": 1}, merges=[]))
    speaker = PreTrainedTokenizerFast(
        tokenizer_object=library, bos_token="<|start|>", eos_token="<|end|>"
    )
    texts: dict[str, dict[str, str | None]] = {}
    for name, template in templates(data).items():
        if name == "qwen3":
            (out / "qwen3.jinja").write_text(template, encoding="utf-8")
        texts[name] = {
            talk: rendered(speaker, template, messages, variables)
            for talk, (messages, variables) in TALKS.items()
        }
    talks = {
        name: {"messages": messages, "variables": variables}
        for name, (messages, variables) in TALKS.items()
    }
    text = json.dumps({"talks": talks, "texts": texts}, ensure_ascii=False, indent=1)
    (out / "golden.json").write_text(text + "\n", encoding="utf-8")


def rendered(speaker: Any, template: str, messages: Talk, variables: dict[str, Any]) -> str | None:
    """None where transformers refuses."""
    options = {"add_generation_prompt": True, **variables}
    try:
        text: str = speaker.apply_chat_template(
            messages, chat_template=template, tokenize=False, **options
        )
    except Exception as error:
        print(f"refused: {error}"[:100])
        return None
    return text


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
