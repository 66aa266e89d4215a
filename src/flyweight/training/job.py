"""`train_heads`: draft heads for a model, from a text, as a folder that `speculative_config` takes.

Invariant: what cannot be trained is refused before the model is loaded.  The texts may be the
model's own, continued from the openings of a file's: drafts are judged by what the model says.
Imports torch only when it trains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flyweight.config import Settings
from flyweight.describe import ModelDescription, describe, find
from flyweight.draft.headfolder import FINGERPRINT
from flyweight.errors import ConfigError, nearest
from flyweight.llm import LLM
from flyweight.plan.machine import read_machine
from flyweight.sampling_params import SamplingParams
from flyweight.spec import ModelSpec
from flyweight.training.folder import DTYPES, check_output, write_heads
from flyweight.training.states import TextStates, collect_states
from flyweight.validation.setting import whole
from flyweight.validation.untrusted import read_bytes
from flyweight.weights.load import read_matrix, read_vector
from flyweight.wire import F32

if TYPE_CHECKING:  # torch is imported only to train
    import torch

    from flyweight.training.corpus import Corpus
    from flyweight.training.eagle import EagleShape

METHODS = ("medusa", "eagle", "eagle3")
SEPARATOR = "<|endoftext|>"
MOST_TEXT = 1 << 30  # bytes
LEAST_TOKENS = 512
LEAST_LAYERS = 3
STATE_BYTES = 2 * 2  # of an element in half precision: as collected, and joined for training
LEAST_EAGLE = 4  # tokens of a text: every pass has one to learn from
Report = Callable[[str, int, int], None]
Note = Callable[[float], None]  # takes the loss of a step
Trained: TypeAlias = tuple[dict[str, F32], dict[str, Any]]  # tensors, and their config.json
Tables: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"  # embedding, output, norm


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """What is trained: `openings` tokens of each text that the model continues itself, 0 for the
    texts as they are; `layers` blocks of each Medusa head; `inner` elements of the MLP of EAGLE and
    EAGLE-3, 0 for the model's own.  Raises `ConfigError`.
    """

    method: str
    steps: int = 2000
    heads: int = 4
    layers: int = 1
    inner: int = 0
    openings: int = 0
    length: int = 512
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name, allowed in (("method", METHODS), ("dtype", DTYPES)):
            value = getattr(self, name)
            if value not in allowed:
                words = f"{', '.join(allowed)}{nearest(str(value), allowed)}"
                raise ConfigError("is not valid", f"--{name}", value=value, allowed=words)
        ranges = {"steps": (1, 10**7), "heads": (1, 16), "layers": (1, 8), "inner": (0, 1 << 18)}
        ranges |= {"openings": (0, 1024), "length": (16, 1 << 17)}
        for name, (low, high) in ranges.items():
            whole(f"--{name}", getattr(self, name), low, high)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest text that something is learned from."""
        return self.heads + 2 if self.method == "medusa" else LEAST_EAGLE


@dataclass(frozen=True, slots=True)
class TrainedHeads:
    """What was written: bytes, tokens trained on, the loss of the first and last steps."""

    path: Path
    nbytes: int
    tokens: int
    losses: tuple[float, float]


def train_heads(
    model: str | None, text: Path, output: Path, options: HeadOptions, report: Report,
    engine: dict[str, Any] | None = None,
) -> TrainedHeads:  # fmt: skip
    """Raises `ConfigError` or `CheckpointError`."""
    if find_spec("torch") is None:
        raise ConfigError("train-heads needs torch, which is not installed; pip install "
                          "'flyweight[train]'")  # fmt: skip
    check_output(output)
    written = read_texts(text)
    found = describe(find(Settings(model=model)))
    check_base(found.spec, options)
    check_openings(options, (engine or {}).get("max_model_len") or found.spec.context)
    matrices = [
        _read_slot(found, slot) for slot in ("embed", "embed" if found.spec.tie else "head", "norm")
    ]
    fingerprint = found.checkpoint.fingerprint
    found.checkpoint.close()
    with LLM(model, **(engine or {})) as llm:
        texts = _make_texts(llm, written, options, report)
        check_lengths(texts, text, options)
        total, taps = sum(map(len, texts)), sorted({-1, *list_taps(found, options)})
        check_memory(total, STATE_BYTES * len(taps) * found.spec.hidden, text)
        done, states = 0, []
        for one in collect_states(llm.loaded, texts, taps):
            states.append(one)
            done += len(one.tokens)
            report("states", done, total)
    tensors, config, losses = _train(states, matrices, found, options, report)
    config |= {FINGERPRINT: fingerprint, "base_model": Path(model or "stories").name}
    nbytes = write_heads(output, config, tensors, options.dtype)
    return TrainedHeads(output, nbytes, total, (losses[0], losses[-1]))


def read_texts(path: Path) -> list[str]:
    """The texts of a file: one, or as many as `<|endoftext|>` separates.  Raises `ConfigError`."""
    raw = read_bytes(path, MOST_TEXT)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 at byte {error.start}"
        raise ConfigError(problem, "--text", value=str(path)) from None
    texts = [part.strip() for part in text.split(SEPARATOR) if part.strip()]
    if not texts:
        raise ConfigError("holds no text", "--text", value=str(path))
    return texts


def check_lengths(texts: Sequence[Sequence[int]], path: Path, options: HeadOptions) -> None:
    """Raises `ConfigError` where there is too little to learn from."""
    total, longest = sum(map(len, texts)), max(map(len, texts))
    if total < LEAST_TOKENS:
        problem = f"has {total} tokens; at least {LEAST_TOKENS} are needed"
        raise ConfigError(problem, "--text", value=str(path))
    if longest < options.shortest:
        problem = (
            f"has no text of more than {longest} tokens; at least {options.shortest} are needed"
        )
        raise ConfigError(problem, "--text", value=str(path))


def check_openings(options: HeadOptions, context: int) -> None:
    """Raises `ConfigError` where an opening leaves the model nothing to say."""
    most = min(options.length, context) - 1
    if options.openings > most:
        problem = "leaves no room for a continuation"
        value, allowed = options.openings, f"0 to {most}"
        raise ConfigError(problem, "--openings", value=value, allowed=allowed)


def check_memory(tokens: int, each: int, path: Path) -> None:
    """Raises `ConfigError` where the states of so many tokens, of `each` bytes, do not fit."""
    available = read_machine().available
    if tokens * each > available:
        problem = (
            f"has {tokens} tokens, whose states take {tokens * each / 1e9:.3g} GB; "
            f"{available // each} tokens fit into the {available / 1e9:.3g} GB available"
        )
        raise ConfigError(problem, "--text", value=str(path))


def check_base(spec: ModelSpec, options: HeadOptions) -> None:
    """Raises `ConfigError` for a model whose heads are not supported."""
    last = spec.layers[-1]
    if spec.narrow:
        problem = f"has no heads for {spec.family}, which projects its states before its output"
        raise ConfigError(problem, "--method", value=options.method)
    if options.method != "medusa" and (not spec.ropes or last.latent or last.rope is None):
        problem = f"needs rotary positions and plain attention; {spec.family} has none"
        raise ConfigError(problem, "--method", value=options.method, hint="nearest valid: medusa")
    if options.method == "eagle3" and (spec.norm.post or len(spec.layers) < LEAST_LAYERS):
        problem = f"taps {LEAST_LAYERS} layers before the last norm; {spec.family} has none to tap"
        raise ConfigError(problem, "--method", value="eagle3", hint="nearest valid: eagle")


def list_taps(found: ModelDescription, options: HeadOptions) -> tuple[int, ...]:
    """The layers that heads read: for EAGLE-3 those that are published, or in a shallow model the
    first, the middle and the last.
    """
    if options.method != "eagle3":
        return (-1,)
    layers = len(found.spec.layers)
    usual = (1, layers // 2 - 1, layers - 4)
    return usual if 1 < usual[1] < usual[2] else (0, layers // 2, layers - 1)


def _read_slot(found: ModelDescription, name: str) -> F32:
    """A matrix [V,H] or a norm [H] in float32; ones where the model's norm has no weights."""
    slot = next((slot for slot in found.plan.slots if slot.name == name), None)
    if slot is None:
        return np.ones(found.spec.hidden, np.float32)
    read = read_vector if slot.kind == "vector" else read_matrix
    return read(found.checkpoint, slot)


def _make_texts(
    llm: LLM, texts: Sequence[str], options: HeadOptions, report: Report
) -> list[list[int]]:
    """Tokens: windows of the texts, or their openings with what the model says after them."""
    encoded = [llm.tokenizer.encode(text, add_special=True) for text in texts]
    context = llm.loaded.limits.max_model_len
    check_openings(options, context)  # memory may have left less than the model's context
    length = min(options.length, context)
    if not options.openings:
        end = sorted(llm.loaded.stop_ids)[:1]
        whole = [[*ids, *end] for ids in encoded]
        return [ids[i : i + length] for ids in whole for i in range(0, len(ids), length)]
    params = SamplingParams(temperature=0, max_tokens=length - options.openings)
    made: list[list[int]] = []
    for first in range(0, len(encoded), 256):
        part = [ids[: options.openings] for ids in encoded[first : first + 256]]
        answers = llm.generate([{"prompt_token_ids": ids} for ids in part], params, use_tqdm=False)
        for ids, answer in zip(part, answers, strict=True):
            made.append([*ids, *answer.outputs[0].token_ids])
        report("continuing texts", min(first + 256, len(encoded)), len(encoded))
    return made


def _train(
    texts: Sequence[TextStates],
    matrices: Sequence[F32],
    found: ModelDescription,
    options: HeadOptions,
    report: Report,
) -> tuple[dict[str, F32], dict[str, Any], list[float]]:
    """The tensors, their config.json, and every step's loss."""
    import torch

    from flyweight.training.corpus import Corpus

    losses: list[float] = []

    def note(loss: float) -> None:
        losses.append(loss)
        report(f"training, loss {loss:.3f}", len(losses), options.steps)

    embedding, head, norm = (torch.from_numpy(matrix) for matrix in matrices)
    corpus = Corpus.of(texts, head, list_taps(found, options))
    if options.method == "medusa":
        return (*_train_medusa(corpus, head, found.spec, options, note), losses)
    scaled = embedding * found.spec.embed_scale  # as the model's own layers have it
    train = _train_eagle if options.method == "eagle" else _train_eagle3
    return (*train(corpus, (scaled, head, norm), found, options, note), losses)


def _train_medusa(
    corpus: "Corpus", head: "torch.Tensor", spec: ModelSpec, options: HeadOptions, note: Note
) -> Trained:
    from flyweight.training.corpus import to_arrays
    from flyweight.training.medusa import train_medusa

    trained = train_medusa(corpus, head, (options.heads, options.layers), options.steps, note)
    config = {
        "model_type": "medusa", "architectures": ["MedusaModel"],
        "hidden_size": spec.hidden, "vocab_size": spec.vocab,
        "num_heads": options.heads, "num_hidden_layers": options.layers,
        "medusa_fc_bias": True, "truncated_vocab_size": spec.vocab,
    }  # fmt: skip
    return to_arrays(trained), config


def _train_eagle(
    corpus: "Corpus", tables: Tables, found: ModelDescription, options: HeadOptions, note: Note
) -> Trained:
    from flyweight.training import eagle
    from flyweight.training.corpus import to_arrays

    shape = make_shape(found, options)
    trained = eagle.train_eagle(corpus, tables[:2], shape, options.steps, note)
    return to_arrays(eagle.name_tensors(trained)), make_layer_config(found.spec, shape)


def _train_eagle3(
    corpus: "Corpus", tables: Tables, found: ModelDescription, options: HeadOptions, note: Note
) -> Trained:
    from flyweight.training import eagle3
    from flyweight.training.corpus import to_arrays

    shape, spec = make_shape(found, options), found.spec
    config = make_layer_config(spec, shape)
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": spec.vocab}
    config["eagle_aux_hidden_state_layer_ids"] = [tap + 1 for tap in list_taps(found, options)]
    trained = eagle3.train_eagle3(corpus, tables, shape, options.steps, note)
    return to_arrays(eagle3.name_tensors(trained)), config


def make_layer_config(spec: ModelSpec, shape: "EagleShape") -> dict[str, Any]:
    """The config.json of EAGLE's layer."""
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLMEagle"],
        "hidden_size": spec.hidden, "vocab_size": spec.vocab,
        "num_hidden_layers": 1, "intermediate_size": shape.inner, "head_dim": shape.head,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps, "rope_theta": shape.base, "hidden_act": "silu",
        "max_position_embeddings": spec.context, "bias": False,
    }  # fmt: skip


def make_shape(found: ModelDescription, options: HeadOptions) -> "EagleShape":
    """EAGLE's layer: the model's last layer without its special parts."""
    from flyweight.training.eagle import EagleShape

    spec, last = found.spec, found.spec.layers[-1]
    inner, base = options.inner or last.inner, spec.ropes[0].base
    kv = last.kv.heads
    return EagleShape(spec.hidden, last.heads, kv, last.head, inner, base, spec.norm.eps)
