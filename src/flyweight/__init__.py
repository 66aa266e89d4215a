"""flyweight: LLM inference in Python over native kernels.

    from flyweight import LLM, SamplingParams

    for out in LLM().generate(["Once upon a time"], SamplingParams(max_tokens=100)):
        print(out.outputs[0].text)

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flyweight.async_llm import AsyncLLM
    from flyweight.config import Settings
    from flyweight.errors import CheckpointError, ConfigError, FlyweightError, RequestError
    from flyweight.llm import LLM
    from flyweight.lowlevel import KVCacheModel
    from flyweight.repetition import RepetitionDetectionParams
    from flyweight.results import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
    )
    from flyweight.structured import StructuredOutputs
    from flyweight.tasks import BeamSearchParams, PoolingParams
    from flyweight.types import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "FlyweightError",
    "KVCacheModel",
    "Logprob",
    "PoolingParams",
    "RepetitionDetectionParams",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "Settings",
    "StructuredOutputs",
    "__version__",
]
__version__ = "0.1.0"

_ROOMS = {
    "LLM": "llm",
    "AsyncLLM": "async_llm",
    "KVCacheModel": "lowlevel",
    **dict.fromkeys(("BeamSearchParams", "PoolingParams"), "tasks"),
    "SamplingParams": "types",
    "StructuredOutputs": "structured",
    "RepetitionDetectionParams": "repetition",
    "Settings": "config",
    **dict.fromkeys(("CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput"), "results"),
    **dict.fromkeys(("Logprob", "RequestMetrics", "RequestOutput"), "results"),
    **dict.fromkeys(("CheckpointError", "ConfigError", "FlyweightError", "RequestError"), "errors"),
}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return __all__
