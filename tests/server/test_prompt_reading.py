"""Prompts on their way in: text beyond the context is refused after little more than that was read,
whatever field it comes in.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.requests.prompts import check_fits, encode_beginning
from flyweight.server.apis.llamacpp.completion import MOST_BIASED, join_mixed, read_biases
from flyweight.server.apis.ollama.models import shorten_text
from flyweight.server.apis.openai.completions import make_infill_prompts
from flyweight.server.apis.prompt_fields import fit_prompts
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer
from http_server import Running

LONGEST = 128  # tokens of a context
LONG = "a cat sat " * 100_000
MOST = 64 * LONGEST  # characters that may be read of it
HOLE = Infill(1, 2, 3, ())
BARE: Any = SimpleNamespace(
    add_special_tokens=False, truncate_prompt_tokens=None, truncation_side=None
)


class Counting:
    """A tokenizer that counts the characters it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.read = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *args: Any, **named: Any) -> list[int]:
        self.read += len(text)
        return self._tokenizer.encode(text, *args, **named)


@pytest.fixture
def model() -> Any:
    from flyweight import LLM

    tokenizer = Counting(LLM().tokenizer)
    return SimpleNamespace(tokenizer=tokenizer, max_model_len=LONGEST)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: fit_prompts([LONG], BARE, model)[0](),
        lambda model: make_infill_prompts(["def f():"], LONG, HOLE, model)[0](),
        lambda model: make_infill_prompts([LONG], "return", HOLE, model)[0](),
        lambda model: join_mixed([1, LONG], model),
        lambda model: join_mixed(["cat sat mat"] * 100_000, model),
        lambda model: read_biases({LONG: 1}, model.tokenizer),
        lambda model: read_biases([["cat" * 1000, 1]] * 1000, model.tokenizer),
        lambda model: check_fits(model.tokenizer, LONG, LONGEST),
    ],
)  # fmt: skip
def test_what_is_too_long_is_refused_before_it_is_read(
    model: Any, make: Callable[[Any], object]
) -> None:
    with pytest.raises(RequestError):
        make(model)
    assert model.tokenizer.read < MOST < len(LONG) / 100


def test_a_text_that_is_cut_is_read_little_further(model: Any) -> None:
    wanted = model.tokenizer.encode(LONG)[:LONGEST]
    model.tokenizer.read = 0
    assert shorten_text(model, LONG)["prompt_token_ids"] == wanted
    assert model.tokenizer.read < MOST
    for text in ("", "a cat", LONG[:3000], " " * 9000 + LONG[:9000]):
        assert (
            encode_beginning(model.tokenizer, text, LONGEST)
            == model.tokenizer.encode(text)[:LONGEST]
        )


def test_prompts_are_counted_before_any_is_read(model: Any) -> None:
    fit_prompts([LONG] * 4, BARE, model)
    make_infill_prompts([LONG] * 4, LONG, HOLE, model)
    assert model.tokenizer.read == 0


def test_what_follows_a_hole_is_read_once_for_all_prompts(model: Any) -> None:
    after = "a cat " * 20
    made = [make() for make in make_infill_prompts(["x"] * 50, after, HOLE, model)]
    assert len({tuple(one["prompt_token_ids"]) for one in made}) == 1
    assert model.tokenizer.read < 5 * len(after) + 50 * 50


def test_texts_with_a_bias_have_a_bound(server: Running) -> None:
    word = "a" * (MOST_BIASED + 1)
    got = server.post("/completion", {"prompt": "Once", "n_predict": 1, "logit_bias": {word: 1}})
    assert got.status == 400 and got.json["error"]["param"] == "logit_bias"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/completions", {"prompt": LONG, "add_special_tokens": False}),
        ("/v1/embeddings", {"input": LONG, "add_special_tokens": False}),
        ("/completion", {"prompt": [1, LONG]}),
    ],
)
def test_it_is_refused_as_a_plain_prompt_is(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    plain = server.post("/v1/completions", {"prompt": LONG})
    got = server.post(path, body)
    assert got.status == plain.status == 400
    assert got.json["error"]["param"] in body and plain.json["error"]["param"] == "prompt"
    assert "tokens or more; allowed: 1 to 511" in got.json["error"]["message"]


def test_what_is_truncated_is_answered(server: Running) -> None:
    name = server.get("/v1/models").json["data"][0]["id"]
    got = server.post("/api/embed", {"model": name, "input": LONG})
    assert got.status == 200 and got.json["prompt_eval_count"] == 512
