"""A quality passport with made-up figures, for tests that only read one."""

from pathlib import Path
from typing import Any

from flyweight.passport import KVFigures, Passport
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.passports import write_passport


def make_passport(fingerprint: str = "f", **more: Any) -> Passport:
    known: dict[str, Any] = {
        "against": "full.gguf", "against_fingerprint": "g", "text": "wiki.txt",
        "text_sha256": "abcd", "tokens": 1000, "context": 128, "stride": 64,
        "perplexity": 12.5, "perplexity_error": 0.25, "kld_mean": 0.02, "kld_mean_error": 0.001,
        "kld_median": 0.01, "kld_p99": 0.2, "kld_p99_9": 0.4, "kld_max": 1.5,
        "top1_agreement": 0.95, "activations": "int8", "flyweight": "0.1.0",
        "date": "2026-01-02", "command": "flyweight eval stamp draft.gguf --against full.gguf",
        "kv_cache": {
            "int8": KVFigures(
                kld_mean=0.001, kld_p99_9=0.02, top1_agreement=0.99, tokens=1000, context=128
            ),
        },
    }  # fmt: skip
    return Passport(fingerprint=fingerprint, **{**known, **more})


def stamp(path: Path, **more: Any) -> Passport:
    """Writes such a passport into a model."""
    checkpoint = open_checkpoint(path)
    made = make_passport(checkpoint.fingerprint, **more)
    checkpoint.close()
    write_passport(path, made)
    return made
