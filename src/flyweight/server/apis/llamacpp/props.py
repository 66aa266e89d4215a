"""What clients ask of a model before they use it: llama-server's /props and vLLM's /tokenizer_info.

Invariant: what is not known is left out or null, never made up; no path of a file is told.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.server.apis.llamacpp.completion import DEFAULTS, settings_of
from flyweight.server.apis.sampling_fields import params_of
from flyweight.server.front import ServedModel
from flyweight.server.transport.replies import reply


async def props(front: ServedModel, request: Request) -> Response:
    """The defaults of /completion, the context, and what the model's template is."""
    settings = settings_of(params_of({**DEFAULTS, **front.defaults}))
    context = front.asking.facts.max_model_len
    return reply(
        {
            "default_generation_settings": {"n_ctx": context, "params": settings},
            "total_slots": front.client.facts["max_num_seqs"],
            "model_path": front.names[0],
            "model_alias": front.names[0],
            "modalities": {"vision": False, "audio": False},
            "chat_template": front.tokenizer.chat_template or "",
            **_marks(front),
            "build_info": f"flyweight {__version__}",
            "is_sleeping": False,
        }
    )


async def tokenizer_info(front: ServedModel, request: Request) -> Response:
    """The vocabulary as a tokenizer_config.json would describe it."""
    return reply(
        {
            "tokenizer_class": type(front.tokenizer.codec).__name__,
            "model_max_length": front.asking.facts.max_model_len,
            "vocab_size": front.tokenizer.vocab_size,
            "add_bos_token": front.tokenizer.add_bos,
            **_marks(front),
            "pad_token": None,
            "chat_template": front.tokenizer.chat_template,
        }
    )


def _marks(front: ServedModel) -> dict[str, Any]:
    """The spelling of the tokens that begin and end a sequence."""
    ids = {"bos_token": front.tokenizer.bos_id, "eos_token": front.tokenizer.eos_id}
    return {
        name: None if token is None else front.tokenizer.piece(token) for name, token in ids.items()
    }
