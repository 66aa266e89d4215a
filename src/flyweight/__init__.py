"""flyweight: LLM inference in Python over native kernels.

    from flyweight import LLM, SamplingParams

    for out in LLM().generate(["Once upon a time"], SamplingParams(max_tokens=100)):
        print(out.outputs[0].text)

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flyweight.arguments.keywords import AsyncEngineArgs, EngineArgs
    from flyweight.async_llm import AsyncLLM, AsyncLLMEngine
    from flyweight.config import Settings
    from flyweight.errors import CheckpointError, ConfigError, FlyweightError, RequestError
    from flyweight.inputs import LoRARequest, TextPrompt, TokensPrompt
    from flyweight.llm import LLM
    from flyweight.lowlevel import KVCacheModel
    from flyweight.outputs import (
        BeamSearchOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
    )
    from flyweight.params.repetition import RepetitionDetectionParams
    from flyweight.params.structured import StructuredOutputs
    from flyweight.params.tasks import BeamSearchParams, PoolingParams
    from flyweight.quantization import QuantizedModel, quantize_model
    from flyweight.sampling_params import SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "FlyweightError",
    "KVCacheModel",
    "LoRARequest",
    "Logprob",
    "PoolingParams",
    "QuantizedModel",
    "RepetitionDetectionParams",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "Settings",
    "StructuredOutputs",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "quantize_model",
]
__version__ = "0.1.0"

_MODULES = {
    "LLM": "llm",
    **dict.fromkeys(("AsyncLLM", "AsyncLLMEngine"), "async_llm"),
    **dict.fromkeys(("AsyncEngineArgs", "EngineArgs"), "arguments.keywords"),
    **dict.fromkeys(("LoRARequest", "TextPrompt", "TokensPrompt"), "inputs"),
    "KVCacheModel": "lowlevel",
    **dict.fromkeys(("BeamSearchParams", "PoolingParams"), "params.tasks"),
    **dict.fromkeys(("SamplingParams", "StructuredOutputsParams"), "sampling_params"),
    "BeamSearchOutput": "outputs",
    "StructuredOutputs": "params.structured",
    "RepetitionDetectionParams": "params.repetition",
    "Settings": "config",
    **dict.fromkeys(("QuantizedModel", "quantize_model"), "quantization"),
    **dict.fromkeys(("CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput"), "outputs"),
    **dict.fromkeys(("Logprob", "RequestMetrics", "RequestOutput"), "outputs"),
    **dict.fromkeys(("CheckpointError", "ConfigError", "FlyweightError", "RequestError"), "errors"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
