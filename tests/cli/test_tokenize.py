"""`flyweight tokenize`: ids and pieces of a text, from every source it may come from."""

import json
import os
from pathlib import Path

import pytest

from flyweight.describe import open_tokenizer

GOLDEN = Path(__file__).parents[1] / "data" / "text" / "golden"


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]


def test_ids_and_pieces_and_their_count(command, folder) -> None:
    got = command("tokenize", "hello <|end|>é", "--model", folder)
    tokenizer = open_tokenizer(folder)
    ids = tokenizer.encode("hello <|end|>é")
    *table, last = rows(got.out)
    assert got.code == 0 and [int(row[1]) for row in table] == ids
    assert [row[2] for row in table] == [tokenizer.piece(i) for i in ids]
    special = [int(row[1]) for row in table if row[-1] == "special"]
    assert special == [480, 481] == [i for i in ids if i in tokenizer.special_ids]
    assert " ".join(last).startswith(f"{len(ids)} tokens · 14 characters · ")


def test_json_says_all_of_it(command, folder) -> None:
    got = json.loads(command("tokenize", "a é 🙂🙃", "--model", folder, "--json").out)
    assert got["count"] == len(got["tokens"]) and got["characters"] == 6
    assert got["tokens"][0] == {
        "id": 480, "piece": "<|start|>", "text": "<|start|>", "bytes": None, "special": True,
    }  # fmt: skip
    parts = [bytes(t["bytes"]) if t["bytes"] else t["text"].encode() for t in got["tokens"][1:]]
    assert b"".join(parts).decode() == "a é 🙂🙃"
    assert any(t["bytes"] for t in got["tokens"]), "a character of several tokens"


def test_without_bos_and_without_special_tokens(command, folder) -> None:
    def ids(*words: str) -> list[int]:
        got = command("tokenize", "a<|end|>", "--model", folder, "--json", *words)
        return [token["id"] for token in json.loads(got.out)["tokens"]]

    assert ids()[:1] == [480] == ids("--add-special")[:1] and ids()[-1] == 481
    assert ids("--no-bos") == ids()[1:]
    assert 481 not in ids("--no-parse-special") and ids("--no-parse-special")[0] == 480


def test_text_from_stdin_and_from_a_file(command, folder, tmp_path) -> None:
    (tmp_path / "t.txt").write_text("one\n")
    wanted = command("tokenize", "one", "--model", folder).out
    assert command("tokenize", "-", "--model", folder, stdin=b"one\n").out == wanted
    assert command("tokenize", "--model", folder, stdin=b"one\n").out == wanted
    assert command("tokenize", "--model", folder, "-f", tmp_path / "t.txt").out == wanted
    empty = command("tokenize", "", "--model", folder, "--no-bos")
    assert empty.out == "0 tokens · 0 characters\n"
    assert "1 token · 1 character\n" not in command("tokenize", "a", "--model", folder).out
    assert "1 token · 1 character · " in command("tokenize", "a", "--no-bos", "-m", folder).out


@pytest.mark.parametrize("name", ["bpe.model", "unigram-bytes.model", "vocab.txt"])
def test_a_file_that_is_a_vocabulary_alone(command, name) -> None:
    got = command("tokenize", "the cat", "--model", GOLDEN / name, "--json")
    ids = open_tokenizer(GOLDEN / name).encode("the cat")
    assert [token["id"] for token in json.loads(got.out)["tokens"]] == ids


def test_a_gguf_file_without_weights(command, data) -> None:
    path = data("tokenizers-ggml-vocab/ggml-vocab-llama-spm.gguf")
    got = command("tokenize", " Hello", "--model", path, "--no-bos")
    assert rows(got.out)[0][1:3] == ["29871", "▁"] and rows(got.out)[1][1:3] == ["15043", "▁Hello"]


def test_what_a_terminal_should_not_see_is_escaped(command, folder) -> None:
    got = command("tokenize", "\x1b[2J\x07", "--model", folder)
    assert got.code == 0 and "\x1b" not in got.out and "\x07" not in got.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tokenize"], "there is not text; give it as an argument, - for stdin, or -f FILE"),
        (["tokenize", "x", "--model", "nowhere.gguf"], "nowhere.gguf"),
        (["tokenize", "x", "--model", os.devnull], "not a regular file"),
        (["tokenize", "x", "--model", __file__], "not a tokenizer's file; looked for"),
        (["tokenize", "x", "--modle", "y"], "did you mean '--model'"),
        (["tokenize", "x", "y"], "unexpected extra argument"),
        (["tokenise", "x"], "did you mean 'tokenize'"),
    ],
)
def test_mistakes_are_one_line(command, words, message) -> None:
    got = command(*words)
    assert got.code == 2 and not got.out
    assert got.err.startswith("error: ") and got.err.count("\n") == 1 and message in got.err
