"""The files next to a vocabulary: tokenizer_config.json and others say which tokens were added,
which begin and end a text, and how messages become a prompt.

For tokenizer.json the `tokenizers` library takes them (`hf`); for every other kind they are laid
over its metadata here.  Every fault is a `CheckpointError` naming the file.
"""

import re
from pathlib import Path

from flyweight.errors import CheckpointError
from flyweight.text.codec import DEFAULT
from flyweight.text.gguf import MOST_TOKENS, TokenType
from flyweight.validation.untrusted import read_bytes, read_json, shown

TOKEN_ID = re.compile("[0-9]{1,10}")
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
ADDED, TEMPLATE = "added_tokens.json", "chat_template.jinja"
NAMED = {  # tokens by name, and GGUF's keys for them
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
FLAGS = {"add_bos_token": "add_bos_token", "add_eos_token": "add_eos_token"}

Json = dict[str, object]


def list_companions(directory: Path) -> list[Path]:
    """The files that are read next to a vocabulary."""
    names = (MAP, CONFIG, ADDED, TEMPLATE)
    found = [path for name in names if (path := directory / name).exists()]
    return found + _list_templates(directory)


def read_companions(directory: Path) -> Json:
    """special_tokens_map.json, and over it tokenizer_config.json; empty where there is neither."""
    config = _read_json(directory / MAP)
    own = _read_json(directory / CONFIG)
    return config | {key: value for key, value in own.items() if value is not None}


def read_added_tokens(config: Json, path: Path) -> dict[int, Json]:
    """What added_tokens_decoder lists, by id, ascending; each has a `content` of whole
    characters.
    """
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, dict) or not all(map(TOKEN_ID.fullmatch, listed)):
        raise CheckpointError(f"{path}: added_tokens_decoder is not an object of token ids")
    for key, entry in listed.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or not is_encodable(content):
            raise CheckpointError(f"{path}: added_tokens_decoder[{key}] has no content of Unicode")
    return {int(key): listed[key] for key in sorted(listed, key=int)}


def read_token(config: Json, name: str) -> str | None:
    """The token a configuration calls `name` (bos_token); it need not be in the vocabulary."""
    value = config.get(name)
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def read_flag(config: Json, name: str, path: Path) -> bool:
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} is {shown(value)}, not true or false")
    return value


def is_encodable(text: str) -> bool:
    """JSON can spell an invalid surrogate; tokens are whole characters."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def read_chat_templates(directory: Path, config: Json) -> dict[str, str]:
    """Templates by name: files before the configuration; one without a name is the default."""
    value = config.get("chat_template")
    found = {DEFAULT: value} if isinstance(value, str) else {}
    for entry in value if isinstance(value, list) else ():
        named = entry if isinstance(entry, dict) else {}
        name, template = named.get("name"), named.get("template")
        if isinstance(name, str) and isinstance(template, str):
            found[name] = template
    files = {DEFAULT: directory / TEMPLATE} | {p.stem: p for p in _list_templates(directory)}
    for name, path in files.items():
        if path.exists():
            found[name] = read_bytes(path).decode("utf-8", "replace")
    return found


def lay_over(metadata: dict[str, object], directory: Path) -> dict[str, object]:
    """`tokenizer.ggml.*` with what the files next to it say: added tokens, ids by name, flags,
    templates.
    """
    config, path = read_companions(directory), directory / CONFIG
    tokens, types = _copy_lists(metadata)
    extra = _read_json(directory / ADDED)
    listed: dict[int, Json] = {
        i: {"content": word, "special": False} for word, i in extra.items() if isinstance(i, int)
    }
    for token, entry in (listed | read_added_tokens(config, path)).items():
        _add(tokens, types, token, entry, path)
    found = metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    scores = metadata.get("tokenizer.ggml.scores")
    if isinstance(scores, list):
        found["tokenizer.ggml.scores"] = scores + [0.0] * (len(tokens) - len(scores))
    for name, key in NAMED.items():
        word = read_token(config, name)
        if word is not None and word in tokens:
            found[f"tokenizer.ggml.{key}"] = tokens.index(word)
        elif word is not None and name in ("bos_token", "eos_token"):
            raise CheckpointError(f"{path}: {name} {shown(word)} is not in the vocabulary")
    for name, key in FLAGS.items():
        if name in config:
            found[f"tokenizer.ggml.{key}"] = read_flag(config, name, path)
    if "do_lower_case" in config:
        found["tokenizer.ggml.normalizer.lowercase"] = read_flag(config, "do_lower_case", path)
    for name, template in read_chat_templates(directory, config).items():
        suffix = "" if name == DEFAULT else f".{name}"
        found[f"tokenizer.chat_template{suffix}"] = template
    return found


def _copy_lists(metadata: dict[str, object]) -> tuple[list[str], list[int]]:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list), "a reader's own metadata"
    return list(tokens), list(types)


def _add(tokens: list[str], types: list[int], token: int, entry: Json, path: Path) -> None:
    """Puts an added token where the file says; no other may be there."""
    content = str(entry["content"])
    if token >= MOST_TOKENS or token > len(tokens) + (1 << 16):
        raise CheckpointError(f"{path}: added_tokens_decoder[{token}] is far past the vocabulary")
    missing = token + 1 - len(tokens)
    tokens += [""] * missing
    types += [TokenType.UNUSED.value] * missing
    if tokens[token] not in ("", content):
        raise CheckpointError(
            f"{path}: added_tokens_decoder gives {shown(content)} the id {token}, "
            f"which is {shown(tokens[token])}"
        )
    tokens[token] = content
    special = bool(entry.get("special"))
    if types[token] != TokenType.UNKNOWN:
        types[token] = (TokenType.CONTROL if special else TokenType.USER_DEFINED).value


def _list_templates(directory: Path) -> list[Path]:
    """Those with names."""
    return sorted((directory / "additional_chat_templates").glob("*.jinja"))


def _read_json(path: Path) -> Json:
    return read_json(path) if path.exists() else {}
