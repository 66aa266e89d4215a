"""Ids that other programs give to texts, for the vocabularies nobody has published ids of.

    PYTHONPATH=src:tests/data/text python tests/text/make_golden_ids.py DATA OUT_DIR

Needs sentencepiece (with protobuf), tiktoken and transformers; DATA holds the corpora.  Writes into
OUT_DIR (tests/data/text/golden): small unigram, BPE, WordPiece and tekken vocabularies made here of
sentences of our own; ids.json, what sentencepiece, tiktoken and transformers make of the 47
published texts and of ours; cuts.json, where the `regex` package finds each pre-tokenizer's
patterns in our texts.
"""

import io
import json
import shutil
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
import sentencepiece
import tiktoken
from make_fixtures import SENTENCES
from sentencepiece import sentencepiece_model_pb2
from tiktoken.load import load_tiktoken_bpe
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from flyweight.text.pretokenizers import PRE_TOKENIZERS

FIXTURES = Path(__file__).parents[1] / "data" / "text"
SEPARATOR = "\n__ggml_vocab_test__\n"
# Characters a text's characters become, as sentencepiece's rule files spell them.
RULES = {"ﬁ": "fi", "①": "1", "\u3000": " ", "\t": " ", "\n": " ", "e\u0301": "é", "\u200b": ""}
OURS = [
    *SENTENCES,
    "",
    " ",
    "   two  spaces   and\ttabs\n\nand lines ",
    "a ﬁne ① day\u3000in e\u0301te\u0301 \u200bnow",
    "ЁЛКА ёлка STRASSE straße İstanbul",
    "unknown: ☃ ☃☃ ☃ 𝕏 \u0000 \ufffd",
    "don't; we'd've (it's) [brackets] <tags> a/b a-b a_b",
    "<s> </s> <unk> [CLS] [SEP] <0x41> ▁underline▁ ##go",
    "café cafe\u0301 naïve Ångström",
    "世界 hello世界hello こんにちは 한국어 ไทย हिन्दी",
    "x" * 150,
]
TO_CUT = [
    "DON'T; HTTPServer's iPhone15 x=1234567; 12,345.6789 ½²Ⅷ <sentinel:12> IMGIMGABZ a  b   c",
    "  two\t\ttabs\r\n\n\nlines    \n  def f(x):\n\t\treturn x/y//z\n ",
    "你好，世界2024年 hello世界 こんにちは カタカナ 한국어 ไทยคำ हिन्दी"
    " ЁЛКА ёлка ǅ 🙂🎉 e\u0301 (é)",
]
Program = tuple[Callable[[str], list[int]], Callable[[list[int]], str]]  # encodes, decodes

TEKKEN = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
PLAIN = {"clean_up_tokenization_spaces": False}
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
O200K = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)


def trained(kind: str, **options: Any) -> bytes:
    """A small SentencePiece model of our sentences."""
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for source, target in RULES.items():
            codes = (" ".join(f"{ord(c):X}" for c in part) for part in (source, target))
            rules.write("\t".join(codes) + "\n")
        rules.flush()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(SENTENCES * 3),
            model_writer=out,
            model_type=kind,
            normalization_rule_tsv=rules.name,
            num_threads=1,
            minloglevel=2,
            **options,
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    model.normalizer_spec.normalization_rule_tsv = ""  # the name of a file that is gone
    return bytes(model.SerializeToString(deterministic=True))


def as_gguf(raw: bytes) -> dict[str, Any]:
    """A unigram model as a GGUF writer puts it, by sentencepiece's own reading of it."""
    model = sentencepiece_model_pb2.ModelProto.FromString(raw)
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [piece.piece for piece in model.pieces],
        "tokenizer.ggml.scores": [piece.score for piece in model.pieces],
        "tokenizer.ggml.token_type": [piece.type for piece in model.pieces],
        "tokenizer.ggml.precompiled_charsmap": list(model.normalizer_spec.precompiled_charsmap),
        "tokenizer.ggml.remove_extra_whitespaces": model.normalizer_spec.remove_extra_whitespaces,
        "tokenizer.ggml.add_space_prefix": model.normalizer_spec.add_dummy_prefix,
        "tokenizer.ggml.unknown_token_id": model.trainer_spec.unk_id,
        "tokenizer.ggml.eos_token_id": model.trainer_spec.eos_id,
        "tokenizer.ggml.bos_token_id": model.trainer_spec.bos_id,
    }


def words() -> list[str]:
    """A small WordPiece vocabulary: characters, beginnings and ends of our words, every second
    word.
    """
    normalizer, cut = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    text = normalizer.normalize_str(" ".join(SENTENCES))
    found = sorted({word for word, _ in cut.pre_tokenize_str(text)})
    begin = sorted({word[:n] for word in found for n in (1, 3)} | {*found[::2]})
    go_on = sorted({f"##{c}" for word in found for c in word} | {f"##{w[3:]}" for w in found[1::4]})
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *begin, *(w for w in go_on if w != "##")]


def joined(bert: BertTokenizer, ids: list[int]) -> str:
    """Words as their pieces say, without guesses about signs."""
    words = bert.convert_ids_to_tokens(ids, skip_special_tokens=True)
    return " ".join(words).replace(" ##", "")


def small(out: Path) -> dict[str, Program]:
    """Trains the small vocabularies; what their own programs make of a text."""
    models = {
        "unigram": trained("unigram", vocab_size=160, user_defined_symbols=["<sep>"]),
        "unigram-bytes": trained("unigram", vocab_size=416, byte_fallback=True),
        "bpe": trained("bpe", vocab_size=260, remove_extra_whitespaces=False),
        "bpe-bytes": trained("bpe", vocab_size=460, byte_fallback=True, add_dummy_prefix=False),
    }
    found: dict[str, Program] = {}
    for name, raw in models.items():
        (out / f"{name}.model").write_bytes(raw)
        program = sentencepiece.SentencePieceProcessor(model_proto=raw)
        found[name] = program.encode, program.decode
    text = json.dumps(as_gguf(models["unigram"]), ensure_ascii=False)
    (out / "unigram.json").write_text(text + "\n", encoding="utf-8")
    (out / "vocab.txt").write_text("\n".join(words()) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as alone:  # next to other files, they would be taken
        shutil.copy(out / "vocab.txt", alone)
        bert = BertTokenizer.from_pretrained(alone)
    found["wordpiece special"] = bert.encode, partial(joined, bert)
    return found


def tekken() -> tuple[dict[str, Any], Program]:
    """The byte-level vocabulary of our sentences as Mistral writes one, its bytes first, and what
    tiktoken makes of it; the last two pieces are cut off by the size that is said.
    """
    content = json.loads((FIXTURES / "tiny-bpe" / "tokenizer.json").read_text(encoding="utf-8"))
    spelled = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    alphabet = bytes_to_unicode()
    byte_of = {character: byte for byte, character in alphabet.items()}
    longer = [bytes(byte_of[c] for c in piece) for piece in spelled if len(piece) > 1]
    pieces = [*(bytes([i]) for i in range(256)), *longer]
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    first, size = 8, len(pieces) - 2
    vocab = [
        {"rank": i, "token_bytes": b64encode(piece).decode(), "token_str": None}
        for i, piece in enumerate(pieces)
    ]
    written = {
        "config": {
            "pattern": TEKKEN,
            "num_vocab_tokens": len(pieces),
            "default_vocab_size": first + size,
            "default_num_special_tokens": first,
            "version": "v3",
        },
        "vocab": vocab,
        "special_tokens": [
            {"rank": i, "token_str": word, "is_control": True} for i, word in enumerate(special)
        ],
    }
    ranks = {piece: i for i, piece in enumerate(pieces[:size])}
    reader = tiktoken.Encoding("t", pat_str=TEKKEN, mergeable_ranks=ranks, special_tokens={})
    return written, (
        lambda text: [first + i for i in reader.encode_ordinary(text)],
        lambda ids: reader.decode([i - first for i in ids]),
    )


def cuts() -> dict[str, list[list[str]]]:
    """The texts to cut, and what the patterns of each pre-tokenizer make of them one after the
    other; of those with the same patterns, the first.
    """
    distinct = {rules.patterns: name for name, rules in reversed(PRE_TOKENIZERS.items())}
    found = {name: [cut(text, patterns) for text in TO_CUT] for patterns, name in distinct.items()}
    return {"texts": [TO_CUT], **dict(sorted(found.items()))}


def cut(text: str, patterns: Sequence[str]) -> list[str]:
    parts = [text]
    for pattern in patterns:
        found = regex.compile(pattern, regex.V1)
        parts = [piece for part in parts for piece in _pieces(found, part)]
    return parts


def _pieces(pattern: "regex.Pattern[str]", text: str) -> list[str]:
    """Matches, and what lies between them."""
    ends = sorted({0, len(text), *(end for m in pattern.finditer(text) for end in m.span())})
    return [text[a:b] for a, b in pairwise(ends)]


def large(data: Path) -> dict[str, Program]:
    """Vocabularies that stay in the corpora."""
    found: dict[str, Program] = {}
    for path in sorted((data / "tokenizers-mistral").glob("*.v*")):
        program = sentencepiece.SentencePieceProcessor(model_file=str(path))
        found[path.name] = program.encode, program.decode
    for name, pattern in (("cl100k_base", CL100K), ("o200k_base", O200K)):
        ranks = load_tiktoken_bpe(str(data / "tokenizers-tiktoken" / f"{name}.tiktoken"))
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        found[f"{name}.tiktoken"] = encoding.encode_ordinary, encoding.decode
    phi = AutoTokenizer.from_pretrained(str(data / "tokenizers-hf-json" / "phi-2"))
    found["phi-2 special"] = phi.encode, partial(phi.decode, **PLAIN)
    return found


def made(program: Program) -> dict[str, Any]:
    """Ids of our texts, and the texts those ids are."""
    ids = [program[0](text) for text in OURS]
    return {"ours": ids, "text": [program[1](one) for one in ids]}


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    published = (data / "tokenizers-ggml-vocab" / "ggml-vocab-gpt-2.gguf.inp").read_text("utf-8")
    texts = published.split(SEPARATOR)
    assert len(texts) == 47
    cases: dict[str, Any] = {"texts": OURS}
    written, tiny = tekken()
    (out / "tekken.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    (out / "cuts.json").write_text(packed(cuts()), encoding="utf-8")
    for name, program in {**small(out), "tekken": tiny}.items():
        cases[name] = made(program)
    for name, program in large(data).items():
        cases[name] = made(program) | {"published": [program[0](text) for text in texts]}
    (out / "ids.json").write_text(packed(cases), encoding="utf-8")


def packed(content: dict[str, Any]) -> str:
    """JSON, a key a line."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in content.items()
    ]
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
