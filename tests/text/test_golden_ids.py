"""Ids other programs give to texts, for every vocabulary in every form: 47 published texts each,
and texts of ours where sentencepiece, tiktoken and transformers were requested
(make_golden_ids.py).
"""

import time

import pytest
from golden_sources import ASIDE, GGML, SOURCES, UNTESTABLE, Data, Source, texts_back
from streaming import check, seeded

from flyweight.text import gguf_bpe
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.gguf import read_gguf

CASES = 1234  # texts, over all vocabularies and forms


def gguf_tokenizer(data: Data, name: str) -> Tokenizer:
    return load_tokenizer(read_gguf(data(GGML.format(name))).metadata)


def test_every_case_is_run() -> None:
    assert sum(source.count for source in SOURCES) == CASES


def test_every_file_is_accounted_for(data: Data) -> None:
    root = data("README.md").parent
    there = {
        path.relative_to(root).as_posix()
        for folder in root.glob("tokenizer*")
        for path in folder.rglob("*")
        if path.is_file() and path.name != "SOURCE.md"
    }
    used = {file for source in SOURCES for file in source.files}
    names = {source.ids for source in SOURCES if not source.ids.startswith("*")} | UNTESTABLE
    used |= {GGML.format(name) + end for name in names for end in (".inp", ".out")} | set(ASIDE)
    beside = {"tokenizers-hf-json/phi-2/tokenizer_config.json"}  # read with tokenizer.json
    beside |= {"tokenizers-hf-json/phi-3-mini/tokenizer_config.json"}
    own = {file for file in used if file.startswith("golden/")}
    assert there == used - own | beside
    assert len(there) == 58


@pytest.fixture(scope="module", params=SOURCES, ids=lambda source: source.name)
def golden(
    request: pytest.FixtureRequest, data: Data, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Source, Tokenizer, list[tuple[str, list[int]]]]:
    source: Source = request.param
    tokenizer = source.load(data, tmp_path_factory.mktemp("source"))
    cases = source.cases(data)
    assert len(cases) == source.count
    return source, tokenizer, cases


def test_ids(golden: tuple[Source, Tokenizer, list[tuple[str, list[int]]]]) -> None:
    """All of a vocabulary's cases in one test, so that it is loaded once."""
    source, tokenizer, cases = golden
    wrong = [
        (text, ids, found)
        for text, ids in cases
        if (found := tokenizer.encode(text, source.special, source.special)) != ids
    ]
    assert wrong == []


def test_ids_do_not_depend_on_where_a_text_is_taken_apart(
    golden: tuple[Source, Tokenizer, list[tuple[str, list[int]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts of all cases, in parts of the usual size, of a few characters, and whole."""
    _, tokenizer, cases = golden
    text = " ".join(text for text, _ in cases) + "\n" + "\n".join(text for text, _ in cases)
    text = (text + " and more, 12 or 123\nof it ") * 3
    found = []
    for size in (1 << 30, 4096, 100, 1):
        monkeypatch.setattr(gguf_bpe, "PART", size)
        found.append(tokenizer.encode(text, False, False))
    assert all(ids == found[0] for ids in found)


def test_text(golden: tuple[Source, Tokenizer, list[tuple[str, list[int]]]]) -> None:
    """A text comes back; where a vocabulary changes it first, as its own program reads the ids."""
    source, tokenizer, cases = golden
    if source.ids.startswith("*") and not source.ids.startswith("*phi"):
        unknown = tokenizer.encode("\uffff", add_special=False)[-1:]  # each shows it in its own way
        back = [(ids, text) for ids, text in texts_back(source) if unknown[0] not in ids]
        assert len(back) > 8
        assert [tokenizer.decode(ids) for ids, _ in back] == [text for _, text in back]
        return
    assert [tokenizer.decode(ids, skip_special=False) for _, ids in cases] == [t for t, _ in cases]


def test_stories_gguf(data: Data) -> None:
    tokenizer = load_tokenizer(read_gguf(data("stories260k/stories260K-f32.gguf")).metadata)
    assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]


def test_a_text_eight_times_as_long_takes_eight_times_as_long(data: Data) -> None:
    """Not 64 times; it is allowed thrice its due, as caches hold less of it."""
    tokenizer = gguf_tokenizer(data, "llama-spm")
    text = data("text-wikitext2/wiki.test.raw").read_text(encoding="utf-8")[:1_000_000]

    def spent(text: str) -> float:
        start = time.process_time()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return time.process_time() - start

    short = min(spent(text[:125_000]) for _ in range(3))
    assert any(spent(text) < 3 * 8 * short for _ in range(3))


REAL = ["llama-spm", "gpt-2", "json:phi-3-mini", "json:phi-2"]


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, data: Data) -> Tokenizer:
    kind, _, name = request.param.rpartition(":")
    if kind:
        return load_tokenizer(data(f"tokenizers-hf-json/{name}/tokenizer.json").parent)
    return gguf_tokenizer(data, name)


def test_streaming_with_real_vocabularies(real: Tokenizer) -> None:
    seeded(100, lambda draw: check(real, draw))
