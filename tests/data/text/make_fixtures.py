"""Makes the small vocabularies of tests/text: `python make_fixtures.py TOK512.BIN OUT_DIR`.

tiny-spm.json is the 512-piece vocabulary of stories260K (MIT, see LICENSE-stories260k) as GGUF
metadata; tiny-bpe/ is a byte-level BPE trained here on the sentences below, which are our own.
"""

import json
import struct
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SENTENCES = [
    "The little engine that could run on any machine ran all day and all night.",
    'One day a small cat saw the big red ball, and the cat said: "I\'d like to play!"',
    "We've got 12 apples, 345 pears and 6789 plums; they're all theirs, aren't they?",
    "Über den Wolken; où est l'été? El niño pequeño; žluťoučký kůň; smörgåsbord.",
    "Привет, мир! Как дела? Привет всем, кто читает этот мир.",
    "你好，世界。你好吗？世界很大，世界很好。こんにちは世界。",
    "🙂🙂 emoji 🎉 and a family 👨‍👩‍👧 with e\u0301 combining marks, a\u0308 too 🙂.",
    "def run(self):\n\treturn [x for x in range(10) if x % 2 == 0]\n\n\n    print('done')",
]


def spm_metadata(path: Path) -> dict[str, object]:
    """llama2.c tokenizer file (u32 longest; then f32 score, i32 length, bytes) as GGUF metadata."""
    raw, at = path.read_bytes(), 4
    pieces, scores = [], []
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at)
        pieces.append(raw[at + 8 : at + 8 + length].decode().strip("\n") or "\n")
        scores.append(score)
        at += 8 + length
    pieces = [
        piece if 3 <= i < 259 else piece.replace(" ", "\u2581") for i, piece in enumerate(pieces)
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in ("<|start|>", "<|end|>")]
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def main(tok512: Path, out: Path) -> None:
    folder = out / "tiny-bpe"
    folder.mkdir(parents=True, exist_ok=True)
    spm = json.dumps(spm_metadata(tok512), ensure_ascii=False)
    (out / "tiny-spm.json").write_text(spm + "\n", encoding="utf-8")
    byte_level().save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "bos_token": "<|start|>",
        "eos_token": {"content": "<|end|>"},
        "add_bos_token": True,
        "chat_template": "{{ messages }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
