"""What clients ask of a model before they use it: llama-server's /props and vLLM's /tokenizer_info.

Invariant: what is not known is left out or null, never made up; no path of a file is told.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.llamacpp.completion import DEFAULTS, make_settings
from flyweight.server.apis.sampling_fields import params_of
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.replies import reply


async def get_props(server: ApiServer, request: Request) -> Response:
    """The defaults of /completion, the context, and what the model's template is."""
    model = server.find()
    settings = make_settings(params_of({**DEFAULTS, **model.defaults}))
    context = model.max_model_len
    return reply(
        {
            "default_generation_settings": {"n_ctx": context, "params": settings},
            "total_slots": model.client.facts["max_num_seqs"],
            "model_path": model.names[0],
            "model_alias": model.names[0],
            "modalities": {"vision": False, "audio": False},
            "chat_template": model.tokenizer.chat_template or "",
            **_spell_marks(model),
            "build_info": f"flyweight {__version__}",
            "is_sleeping": False,
        }
    )


async def get_tokenizer_info(server: ApiServer, request: Request) -> Response:
    """The vocabulary as a tokenizer_config.json would describe it."""
    model = server.find()
    return reply(
        {
            "tokenizer_class": type(model.tokenizer.codec).__name__,
            "model_max_length": model.max_model_len,
            "vocab_size": model.tokenizer.vocab_size,
            "add_bos_token": model.tokenizer.add_bos,
            **_spell_marks(model),
            "pad_token": None,
            "chat_template": model.tokenizer.chat_template,
        }
    )


def _spell_marks(model: ServedModel) -> dict[str, Any]:
    """The spelling of the tokens that begin and end a sequence."""
    ids = {"bos_token": model.tokenizer.bos_id, "eos_token": model.tokenizer.eos_id}
    return {
        name: None if token is None else model.tokenizer.piece(token) for name, token in ids.items()
    }
