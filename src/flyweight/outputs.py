"""vLLM's module of this name: what a caller gets back.

Invariant: names only; they are defined in `results`.
"""

from flyweight.results import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    Counter,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Gauge,
    Logprob,
    RequestMetrics,
    RequestOutput,
)

__all__ = [
    "BeamSearchOutput",
    "BeamSearchSequence",
    "CompletionOutput",
    "Counter",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Gauge",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
]
