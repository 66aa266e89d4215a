"""llama-server's /infill: the text at a cursor, from the text before and after it.

Invariant: the prompt is the same as that of `suffix` in /v1/completions.  Other files come before
it, and are left out if they do not fit.  Fields that tune llama.cpp's sampler and clock have no
effect, and are listed as ignored.
"""

from functools import partial
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.requests.prompts import PIECE, check_fits
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.fields import ALWAYS, Fields
from flyweight.server.apis.llamacpp.completion import LlamaOptions, continue_prompts
from flyweight.server.apis.openai.completions import get_infill
from flyweight.server.served_model import ServedModel
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer

TUNING = "Has no effect: llama.cpp's own sampler and clock have it."
MOST_CHUNKS = 1024


class ExtraChunk(Fields):
    """A part of another file."""

    text: str
    filename: str | None = None
    time: Any = Field(None, description="Has no effect.")


class InfillBody(LlamaOptions):
    """The text around a cursor; `prompt` is the beginning of its line."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraChunk] | None = Field(None, max_length=MOST_CHUNKS, fail_fast=True)
    prompt: str = ""
    samplers: list[str] | None = Field(None, description=TUNING, json_schema_extra=ALWAYS)
    n_indent: int | None = Field(None, description=TUNING, json_schema_extra=ALWAYS)
    min_keep: int | None = Field(None, description=TUNING, json_schema_extra=ALWAYS)
    t_max_prompt_ms: int | None = Field(None, description=TUNING, json_schema_extra=ALWAYS)
    t_max_predict_ms: int | None = Field(None, description=TUNING, json_schema_extra=ALWAYS)
    response_fields: list[str] | None = Field(
        None, description="Has no effect: replies have all fields.", json_schema_extra=ALWAYS
    )


async def infill(server: ApiServer, request: Request, body: InfillBody) -> Response:
    model = await server.open_to_generate(request)
    marks = await model.run_in_thread(get_infill, model, "input_suffix")
    ends = () if body.ignore_eos else marks.ends
    prompt = partial(make_prompt, body, marks, model)
    return await continue_prompts(server, model, request, body, [prompt], ends)


def make_prompt(body: InfillBody, marks: Infill, model: ServedModel) -> dict[str, Any]:
    """The prompt.  Raises `RequestError` if the texts at the cursor do not fit."""
    tokenizer, longest = model.tokenizer, model.max_model_len
    for name in ("input_prefix", "prompt", "input_suffix"):
        check_fits(tokenizer, getattr(body, name), longest, name)
    before = [
        *marks.encode_plain(body.input_prefix, tokenizer),
        *marks.encode_plain(body.prompt, tokenizer),
    ]
    around = marks.encode_prompt(before, body.input_suffix, tokenizer)
    answer = longest // 2 if body.n_predict == -1 else max(1, body.n_predict)
    return {
        "prompt": None,
        "prompt_token_ids": add_files(body, marks, around, longest - answer, tokenizer),
    }


def add_files(
    body: InfillBody, marks: Infill, around: list[int], most: int, tokenizer: Tokenizer
) -> list[int]:
    """The prompt after those of other files: as many of the last ones as fit into `most` tokens."""
    head, tail = marks.encode_frame(tokenizer)
    left = most - len(around) - len(head) - len(tail)
    others: list[int] = []
    for one in reversed(body.input_extra or ()):
        if len(one.text) > PIECE * max(0, left):
            break
        ids = marks.encode_file(one.filename or "", one.text, tokenizer)
        if len(ids) > left - len(others):
            break
        others = ids + others
    if not others:
        return around
    begun = around[0] == tokenizer.bos_id and tokenizer.add_bos
    return [*around[:begun], *head, *others, *tail, *around[begun:]]
