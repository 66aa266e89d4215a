r"""How byte-level vocabularies cut a text into words before merging: a table from the names GGUF
files use (`tokenizer.ggml.pre`) to patterns.

The patterns are those of the models' own tokenizer files, in Oniguruma's syntax; what no pattern
matches stays a word of its own.  Knows nothing of pieces or merges.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from flyweight.text.codec import encode_bytes

# A blank between letters or digits: no pattern of most families takes it to the word before it, and
# none looks from there to what is behind it.  Letters of a script that has capitals, kana, the Han
# and Hangul that all patterns know, so that two versions of Unicode cannot disagree.
_KNOWN = r"A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
LINES_END = rf"(?<=[{_KNOWN}])(?=\n[{_KNOWN}])"
JOINTLESS = 1 << 14  # characters of a piece of text that has hardly a joint
UNJOINTED = {"superbpe"}  # all text between two numbers is one word
WORDS_END = rf"(?<=[A-Za-z0-9])(?= [A-Za-z0-9])|{LINES_END}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut before merging: each pattern in turn splits what the ones before it left,
    matches apart.
    """

    patterns: tuple[str, ...]
    spelled: tuple[
        str, ...
    ] = ()  # patterns that cut the byte-level spelling, where U+00BD is a digit
    nfc: bool = False
    ignore_merges: bool = False  # a cut that is itself a piece is taken whole
    add_bos: bool = False  # the family's habit where the file does not say
    raw: bool = False  # pieces are text, a space spelled U+2581, bytes <0xHH>; not byte-level
    joints: str = ""  # places where every text may be taken apart; none are known


def split_text(text: str, joints: re.Pattern[str] | None, size: int) -> Iterator[str]:
    """A text in pieces of about `size` characters, or of more where none of the joints comes."""
    start = 0
    while joints is not None and len(text) - start > size:
        found = joints.search(text, start + size)
        if found is None:
            break
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def make_normalizer(rules: PreTokenizer) -> normalizers.Normalizer | None:
    """What is done to a text before it is cut."""
    steps: list[normalizers.Normalizer] = [normalizers.NFC()] if rules.nfc else []
    steps += [normalizers.Replace(" ", "\u2581")] if rules.raw else []
    return normalizers.Sequence(steps) if steps else None


class PreTokens:
    """The words of a text, in the spelling pieces have.  Those of a long one are found while others
    run: as the words of a vocabulary that has none, by their places.
    """

    def __init__(self, rules: PreTokenizer) -> None:
        self._cut = make_splitter(rules)
        self._raw = rules.raw
        self._first = _make_word_tokenizer(rules.patterns)
        self._spelled = _make_word_tokenizer(rules.spelled) if rules.spelled else None

    def split(self, text: str) -> list[str]:
        if len(text) < JOINTLESS:
            return [word for word, _ in self._cut.pre_tokenize_str(text)]
        words = _cut_words(self._first, [text])
        if not self._raw:
            words = [encode_bytes(word.encode()) for word in words]
        return words if self._spelled is None else _cut_words(self._spelled, words)


def _make_word_tokenizer(patterns: Sequence[str]) -> Tokenizer:
    """Makes one token of every word."""
    library = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
    library.pre_tokenizer = pre_tokenizers.Sequence(_make_splits(patterns))
    return library


def _cut_words(library: Tokenizer, texts: list[str]) -> list[str]:
    found = library.encode_batch(texts, add_special_tokens=False)
    both = zip(texts, found, strict=True)
    return [text[start:end] for text, one in both for start, end in one.offsets]


def make_splitter(rules: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """The cuts, and the byte-level spelling where pieces have it."""
    alphabet = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    spelling = [] if rules.raw else alphabet
    return pre_tokenizers.Sequence(
        [*_make_splits(rules.patterns), *spelling, *_make_splits(rules.spelled)]
    )


def _make_splits(patterns: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def _list_families(families: Mapping[str, PreTokenizer]) -> Iterator[tuple[str, PreTokenizer]]:
    """The table's rows, one for each name of each family."""
    for names, rules in families.items():
        joints = rules.joints or ("" if names in UNJOINTED else WORDS_END)
        yield from ((name, replace(rules, joints=joints)) for name in names.split())


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # of English words, in either case
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # GPT-2's
_DIGITS = r"\p{N}"
_THREES = r"\p{N}{1,3}"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_AND_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# Words of a capital and small letters, then words of capitals, as GPT-4o cuts them.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_AND_ENDINGS = _CASED % (f"{_ENDINGS}?", f"{_ENDINGS}?")
_UPPER_NO_HAN = _UPPER[:-1] + r"&&[^\p{Han}]]"
_LOWER_NO_HAN = _LOWER[:-1] + r"&&[^\p{Han}]]"
_CASED_NO_HAN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NO_HAN}*{_LOWER_NO_HAN}+{_ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NO_HAN}+{_LOWER_NO_HAN}*{_ENDINGS}?"
)
# DeepSeek's third version: a sign and Latin letters, words with their marks, runs of signs.
_SIGN_AND_LATIN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_MARKED_WORDS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_SIGN_AND_LATIN}|{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
_SOUTH_EAST_ASIA = (  # and East Asia: scripts without spaces, as AFMoE lists them
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
    r"\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
    r"\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    r"[\uac00-\ud7a3\u3131-\u318e]+"
    r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    r"|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
# Digits in threes counted from the right, so that the first group may be short.
_THREES_FROM_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_POWERS_OF_BLANKS = "".join(rf"\s{{{1 << n}}}(?!\S)|" for n in range(9, 1, -1))

_GPT2 = PreTokenizer((_WORDS,))
_NEOX = replace(_GPT2, nfc=True)
_STARCODER = PreTokenizer((_DIGITS, _WORDS))
_CL100K = PreTokenizer((f"{_ENDINGS}|{_LETTERS}|{_THREES}|{_SIGNS}|{_BLANKS}",))
_LLAMA3 = replace(_CL100K, ignore_merges=True, add_bos=True)
_QWEN = PreTokenizer((f"{_ENDINGS}|{_LETTERS}|{_DIGITS}|{_SIGNS}|{_BLANKS}",))
_QWEN2 = replace(_QWEN, nfc=True)
_O200K = PreTokenizer((f"{_CASED_AND_ENDINGS}|{_THREES}|{_SIGNS_AND_SLASHES}|{_BLANKS}",))
_LINES = PreTokenizer((r"[^\n]+|\n+",), raw=True, ignore_merges=True, joints=LINES_END)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    dict(
        _list_families(
            {
                "default": PreTokenizer(
                    (r"[\p{P}$+<=>^~|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")
                ),
                "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code "
                "roberta-bpe gigachat a.x-4.0 mellum modern-bert jais trillion granite-docling "
                "exaone4": _GPT2,
                "mpt olmo": _NEOX,
                "starcoder refact smollm codeshell exaone minerva-7b mellum2": _STARCODER,
                "command-r": replace(_STARCODER, nfc=True),
                "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
                "jina-v5-nano": _LLAMA3,
                "dbrx smaug-bpe glm4 chatglm-bpe": _CL100K,
                "minicpm5": PreTokenizer(
                    (_THREES, f"{_ENDINGS}|{_LETTERS}|\\p{{N}}+|{_SIGNS}|{_BLANKS}"),
                    ignore_merges=True,
                ),
                "jais-2": PreTokenizer(
                    (
                        f"{_ENDINGS}|{_LETTERS}|{_THREES}|{_SIGNS}|\\s*[\\r\\n]+|"
                        f"{_POWERS_OF_BLANKS}\\s{{1,2}}(?!\\S)|\\s",
                    )
                ),
                "qwen2 deepseek-r1-qwen megrez kormo f2llmv2": _QWEN2,
                "stablelm2 hunyuan solar-open grok-2": _QWEN,
                "ufakzeka": PreTokenizer((f"{_LETTERS}|{_DIGITS}|{_SIGNS}|{_BLANKS}",)),
                "laguna": replace(_QWEN, patterns=(r"[^\n]+|\n+", *_QWEN.patterns)),
                "qwen35": PreTokenizer(
                    (
                        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGITS}"
                        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
                    ),
                    nfc=True,
                ),
                "seed-coder": PreTokenizer(
                    (rf"{_ENDINGS}|{_LETTERS}|{_DIGITS}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)
                ),
                "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
                    (
                        rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|{_DIGITS}"
                        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
                    )
                ),
                "exaone-moe": PreTokenizer(
                    (
                        rf"{_ENDINGS}"
                        r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
                        rf"|{_DIGITS}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
                    ),
                    joints=LINES_END,
                ),
                "gpt-4o llama4 kanana2 talkie minimax-m2": _O200K,
                "granite-embed-multi-97m": replace(_O200K, ignore_merges=True),
                "tiny_aya cohere2moe": replace(
                    _O200K, patterns=(r"\d{1,3}(?=(?:\d{3})*\b)", *_O200K.patterns)
                ),
                "tekken": PreTokenizer(
                    (f"{_CASED % ('', '')}|{_DIGITS}|{_SIGNS_AND_SLASHES}|{_BLANKS}",),
                    ignore_merges=True,
                    add_bos=True,
                ),
                "kimi-k2": PreTokenizer(
                    (rf"\p{{Han}}+|{_CASED_NO_HAN}|{_THREES}|{_SIGNS}|{_BLANKS}",)
                ),
                "youtu": PreTokenizer(
                    (
                        _YOUTU_SCRIPTS,
                        f"{_CASED_AND_ENDINGS}|{_DIGITS}|{_SIGNS_AND_SLASHES}|{_BLANKS}",
                    ),
                    ignore_merges=True,
                ),
                "falcon": PreTokenizer(
                    (r"[\p{P}$+<=>^~|`]+", _WORDS), spelled=(r"\p{N}+", r"[0-9][0-9][0-9]")
                ),
                "deepseek-llm": PreTokenizer(
                    (
                        r"[\r\n]",
                        r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",  # cased letters only
                        r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                        r"\s+$",
                        _CJK,
                        r"\p{N}+",
                    )
                ),
                "deepseek-coder": PreTokenizer(
                    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGITS),
                ),
                "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(
                    (_THREES, _HAN_AND_KANA, _DEEPSEEK3)
                ),
                "spark2_5": PreTokenizer(
                    (
                        _THREES,
                        _HAN_AND_KANA,
                        rf"{_SIGN_AND_LATIN}|{_MARKED_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]"
                        r"|\s+(?!\S)|\s+",
                        _DIGITS,
                    )
                ),
                "afmoe": PreTokenizer((_THREES_FROM_RIGHT, _SOUTH_EAST_ASIA, _DEEPSEEK3)),
                "poro-chat bloom gpt3-finnish": PreTokenizer((_BLOOM,)),
                "viking": PreTokenizer((_BLOOM, _DIGITS)),
                "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
                "chameleon": PreTokenizer(
                    (
                        r"<sentinel:[0-9]+>",
                        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                        r"([\t\n]|    |  )",
                        _DIGITS,
                        r"[\p{P}!-/:-@\[-`{-~]",
                        _WORDS,
                    ),
                    add_bos=True,
                ),
                "gemma4 granite-embed-multi-311m": replace(_LINES, add_bos=True),
                "sarvam-moe": _LINES,
            }
        )
    )
)
