"""Settings and limits: every setting has a default, a range check and one line of help.

Invariant: a `Limits` or `Settings` that exists is consistent.  The only module that reads the
environment.  Standard library only.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

from flyweight.errors import ConfigError, nearest
from flyweight.spec import KV_NAMES, KV_TYPES, read_kv_type
from flyweight.speculation import SpeculationConfig, read_speculation
from flyweight.speculation_methods import EXAMPLE, MOST_DRAFTS
from flyweight.validation.cache_size import check_cache_size
from flyweight.validation.engine import check_engine
from flyweight.validation.external_cache import check_external_cache
from flyweight.validation.nodes import MASTER_ADDR, MASTER_PORT, check_nodes
from flyweight.validation.parallel import check_parallel
from flyweight.validation.peers import check_peers
from flyweight.validation.setting import check_settings, setting
from flyweight.validation.setting import whole as whole

KEPT = "20GiB"  # of packed weights, all models together
LEAST_MODEL_LEN = 512  # a shorter context is only chosen when requested
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def describe_unknown(name: str, known: Collection[str]) -> str:
    """The refusal of a setting that does not exist."""
    return f"unknown setting {name!r}{nearest(name, known)}; docs/python-api.md lists all settings"


def find_peer_python(given: str | None) -> str:
    """The interpreter that has the engines we are compared with: the one given, else
    FLYWEIGHT_PEER_PYTHON; empty for the one that runs.
    """
    return given or os.environ.get("FLYWEIGHT_PEER_PYTHON") or ""


def find_data_folder() -> Path | None:
    """FLYWEIGHT_DATA: a folder of texts and traces to measure and test with, if there is one."""
    given = os.environ.get("FLYWEIGHT_DATA")
    return Path(given) if given else None


def read_openai_key() -> str:
    """OPENAI_API_KEY, which clients of servers send; empty where there is none."""
    return os.environ.get("OPENAI_API_KEY") or ""


def read_server_key() -> tuple[str, str]:
    """The key that clients of a server started without one are to send, after its variable's name:
    FLYWEIGHT_API_KEY, else VLLM_API_KEY; empty where neither is set.
    """
    names = ("FLYWEIGHT_API_KEY", "VLLM_API_KEY")
    given = [(name, os.environ.get(name, "").strip()) for name in names]
    return next((pair for pair in given if pair[1]), ("", ""))


def read_service_manager() -> tuple[str, float]:
    """NOTIFY_SOCKET, where a service manager receives messages, and the seconds of WATCHDOG_USEC;
    "" and 0 where there is none, or the watchdog is another process's.
    """
    period = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
    seconds = int(period) / 1e6 if ours and re.fullmatch(r"[0-9]{1,15}", period) else 0.0
    return os.environ.get("NOTIFY_SOCKET", ""), seconds


def read_fault() -> str:
    """FLYWEIGHT_FAULT, what is to go wrong in a server under test; nothing without
    FLYWEIGHT_TESTING=1.
    """
    testing = os.environ.get("FLYWEIGHT_TESTING") == "1"
    return os.environ.get("FLYWEIGHT_FAULT", "") if testing else ""


def set_unset_variables(more: Mapping[str, str]) -> None:
    """Sets variables of this process and of those that it starts, where the user has set none."""
    os.environ.update({**more, **os.environ})


def extend_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment for another process of ours, with `more` in it."""
    return {**os.environ, **more}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler must never exceed.  Raises `ConfigError` when out of range.

    `max_model_len` tokens of prompt and answer together; `max_num_seqs` sequences and
    `max_num_batched_tokens` tokens in a step; `blocks` blocks of `block_size` tokens of K/V;
    `max_chunk` most prompt tokens of one sequence in a step (None: no limit of its own);
    `draft_tokens` most draft tokens a step; `hidden_rows` most hidden states handed out in a step,
    `scored` most prompt tokens in one whose log-probabilities are wanted (0: none may be).  Draft
    tokens are below `vocab`.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    blocks: int
    prefix_caching: bool = True
    max_chunk: int | None = None
    draft_tokens: int = 4
    hidden_rows: int = 256
    scored: int = 256
    vocab: int = 2**31 - 1

    def __post_init__(self) -> None:
        whole("block_size", self.block_size, 1, 1024)
        whole("blocks", self.blocks, 1, (2**31 - 1) // self.block_size)  # slots are 32-bit
        whole("max_model_len", self.max_model_len, 2)
        whole("max_num_seqs", self.max_num_seqs, 1)
        # every decode gets its token every step
        whole("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs)
        whole("draft_tokens", self.draft_tokens, 0, MOST_DRAFTS)
        whole("hidden_rows", self.hidden_rows, 1)
        whole("scored", self.scored, 0)
        if self.max_chunk is not None:
            whole("max_chunk", self.max_chunk, 1)


def parse_bytes(text: str, total: int, name: str = "memory_limit") -> int:
    """`6GiB`, `512MB`, plain bytes or, with a `total`, `80%` of it.  Raises `ConfigError`."""
    examples = "6GiB, 512MB or 80%" if total else "6GiB or 512MB"
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]{0,3}|%)\s*", text, re.ASCII)
    if match is None or (match[2] == "%" and not total):
        raise ConfigError(f"is not a size; write {examples}", name, value=text)
    number, unit = Fraction(match[1]), match[2].lower()
    if unit == "%":
        if not 0 < number <= 100:
            raise ConfigError(
                "is out of range",
                name,
                value=text,
                allowed="above 0% to 100%",
                hint=f"nearest valid: {('100%' if number else '1%')}",
            )
        return int(total * number / 100)
    scale = (UNITS | BINARY).get(unit.removesuffix("b"))
    if scale is None:
        raise ConfigError(f": unknown unit; write {examples}", name, value=text)
    return int(number * scale)


@dataclass(frozen=True, slots=True)
class PackedCacheSettings:
    """Where packed weights are kept between starts (None: nowhere), and how many bytes of them."""

    folder: Path | None
    room: int

    @classmethod
    def of_environment(cls) -> Self:
        """FLYWEIGHT_CACHE, or flyweight in XDG_CACHE_HOME or in ~/.cache; FLYWEIGHT_CACHE_SIZE."""
        room = parse_bytes(
            os.environ.get("FLYWEIGHT_CACHE_SIZE") or KEPT, 0, "FLYWEIGHT_CACHE_SIZE"
        )
        own = os.environ.get("FLYWEIGHT_CACHE")
        if own:
            return cls(Path(own).expanduser(), room)
        shared = os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(shared):  # others are to be ignored, its specification says
            return cls(Path(shared) / "flyweight", room)
        try:
            return cls(Path.home() / ".cache" / "flyweight", room)
        except RuntimeError:  # no home: a user id that no list of users has
            return cls(None, room)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may choose about an engine; names are vLLM's where it has one.  Raises
    `ConfigError`.

    Each field declares its option, range and meaning; docs/python-api.md has more.  `adapters` are
    folders of LoRA adapters by the names requests call them.  `speculative_config` is the checked
    mapping where one was given, else an empty text.
    """

    # fmt: off
    model: str | os.PathLike[str] | None = setting(
        None, "Model", "A .gguf file, a folder or a name on the Hub; the same as MODEL.", "MODEL",
        kind="text", special=True
    )
    revision: str | None = setting(
        None, "Model", "A branch, tag or commit of a model on the Hub.", "NAME"
    )
    offline: bool = setting(False, "Model", "Make no network call.")
    load_format: str = setting(
        "auto", "Model", "Format of the weights: auto, gguf, safetensors, pt (pytorch_model.bin).",
        "KIND", choices=("auto", "gguf", "safetensors", "pt"), special=True
    )
    quantization: Mapping[str, Any] = setting(
        {}, "Model", "Quantisation that the files must have: gptq, awq, gguf, ...", "METHOD",
        kind="text", special=True, also=("-q",), words="any"
    )
    adapters: Mapping[str, str | os.PathLike[str]] = setting(
        {}, "Model", "LoRA adapters, each served as a model of its name.", "NAME=FOLDER ...",
        kind="words", option="lora-modules", special=True
    )
    max_kld: float | None = setting(
        None, "Model", "Max mean KLD (nats) in the model's quality passport, which it must have.",
        "NATS", words="any",
    )
    packed_cache: bool = setting(True, "Model", "Keep packed weights for the next start.")
    max_model_len: int | None = setting(
        None, "Engine", "Longest prompt and answer together: 4096, 32k, auto.", "TOKENS",
        kind="count", low=2, high=1 << 24, none=("auto", "-1"),
        words="the model's maximum, or less if memory is short"
    )
    memory_limit: str | int = setting(
        "80%", "Engine", "Memory for everything together: 6GiB, 512MB, 80%.", "SIZE"
    )
    kv_cache_memory_bytes: int = setting(
        0, "Engine", "Memory for the K/V cache alone.", "SIZE", kind="size", low=0, high=1 << 50,
        words="as much as can be used and fits"
    )
    blocks: int = setting(
        0, "Engine", "Blocks of the K/V cache.", "N", low=0, high=2**31 - 1,
        option="num-gpu-blocks-override", words="as many as can be used and fit"
    )
    kv_cache_dtype: str = setting(
        "auto", "Engine", f"Type of the K/V cache: auto, {', '.join(KV_TYPES)}.", "TYPE",
        choices=("auto", *KV_NAMES)
    )
    block_size: int = setting(
        32, "Engine", "Tokens in a block of the K/V cache.", "TOKENS", high=1024
    )
    threads: int | None = setting(
        None, "Engine", "Threads to compute with.", "N", high=256,
        words="the cores this process may use"
    )
    tensor_parallel_size: int = setting(
        1, "Engine", "Processes that share the model, with a part of every layer each.", "N",
        high=64, also=("-tp",)
    )
    enable_expert_parallel: bool = setting(
        False, "Engine", "Ranks have whole experts, in place of a part of each."
    )
    pipeline_parallel_size: int = setting(
        1, "Engine", "Stages that a model's layers are divided into, in processes of their own.",
        "N", high=64, also=("-pp",)
    )
    nnodes: int = setting(1, "Engine", "Hosts that share the model.", "N", high=64, also=("-n",))
    node_rank: int = setting(0, "Engine", "Number of this host.", "N", low=0, high=63, also=("-r",))
    master_addr: str = setting(MASTER_ADDR, "Engine", "Address of host 0.", "ADDRESS")
    master_port: int = setting(MASTER_PORT, "Engine", "Port where hosts join.", "PORT", high=65535)
    node_secret_file: str | os.PathLike[str] | None = setting(
        None, "Engine", "File with the secret that the hosts share, 32 bytes or more.", "FILE",
        kind="text", words="none: on loopback alone"
    )
    distributed_timeout_seconds: int = setting(
        300, "Engine", "Max time (s) to wait for other hosts.", "SECONDS", high=1 << 20
    )
    activations: str = setting(
        "int8", "Engine", "Precision to multiply matrices in.", "int8|bf16|f32",
        choices=("int8", "bf16", "f32")
    )
    max_num_seqs: int = setting(64, "Engine", "Max sequences in a step.", "N", high=4096)
    max_num_batched_tokens: int = setting(
        512, "Engine", "Max tokens in a step.", "TOKENS", kind="count", high=1 << 20
    )
    scheduler: str = setting(
        "continuous", "Engine", "When requests start: continuous (as others end), static (in whole "
        "batches, for comparison).", "KIND", choices=("continuous", "static")
    )
    long_prefill_token_threshold: int = setting(
        0, "Engine", "Max tokens of one prompt in a step; 0: no limit.", "TOKENS", low=0,
        high=1 << 24
    )
    enable_prefix_caching: bool = setting(
        True, "Engine", "Reuse the K/V of prompts with a common prefix."
    )
    prefix_cache_dir: str | os.PathLike[str] | None = setting(
        None, "Engine", "Directory for blocks of the prefix cache, kept for the next start.", "DIR",
        kind="text", words="none: the cache ends with the process"
    )
    prefix_cache_gb: float = setting(8.0, "Engine", "Max GiB of blocks there, per replica.", "GIB")
    prefix_cache_peers: str = setting(
        "", "Engine", "Servers that may have blocks which this one has not.", "HOST:PORT,..."
    )
    prefix_cache_listen: str = setting(
        "", "Engine", "Address at which peers may fetch blocks of that directory.", "HOST:PORT"
    )
    prefix_cache_secret_file: str | os.PathLike[str] | None = setting(
        None, "Engine", "File with the secret that peers share, 32 bytes or more.", "FILE",
        kind="text", words="none: the directory has its own"
    )
    prefix_cache_peer_rate: int = setting(
        0, "Engine", "Max bytes a second that are sent to peers; 0: no limit.", "SIZE",
        kind="size", low=0, high=1 << 40
    )
    swap_space: float = setting(
        0.0, "Engine", "GiB of memory for blocks that the K/V cache has no room for.", "GIB",
        words="0: they are computed again"
    )
    kv_cache: bool = setting(
        True, "Engine", "Keep K and V of computed tokens; without, each token computes all before "
        "it again (for comparison)."
    )
    kv_cache_metrics: bool = setting(
        False, "Engine", "Measure how long K/V blocks stay, for /metrics."
    )
    kv_cache_metrics_sample: float = setting(
        0.01, "Engine", "Share of the blocks to measure.", "SHARE"
    )
    seed: int | None = setting(
        None, "Engine", "Seed of requests that have none.", "N", low=-(2**63), high=2**64 - 1,
        words="random"
    )
    speculative_config: str | Mapping[str, Any] = setting(
        "", "Engine", f"Speculative decoding: {EXAMPLE}.", "JSON", kind="object",
        words="no speculation"
    )
    # without an option of their own
    prompt_logprob_rows: int = setting(
        256, "", "Max rows of logits in a step for prompt_logprobs.", low=0, high=256
    )
    max_logprobs: int = setting(
        20, "", "Max log-probabilities per token; -1: all.", low=-1, high=64
    )
    backend: str = setting(
        "cpu", "", "Backend that computes; memory_limit is of its memory.",
        choices=("cpu", "cuda", "reference"),
    )
    enforce_eager: bool = setting(False, "", "Run a GPU's decode steps without CUDA graphs.")
    deterministic: bool | None = setting(
        None, "", "On a GPU, no answer's bits depend on its batch; off: cuBLAS for many rows.",
        words="always on a CPU, off on a GPU",
    )
    isa: str | None = setting(
        None, "", "Instruction set of the kernels; else FLYWEIGHT_ISA, else the best."
    )
    # fmt: on

    def __post_init__(self) -> None:
        named = isinstance(self.adapters, Mapping) and all(
            isinstance(name, str) and name and isinstance(path, str | os.PathLike)
            for name, path in self.adapters.items()
        )
        if not named:
            given = str(self.adapters)[:80]
            raise ConfigError("is not valid", "adapters", value=given, allowed="names to folders")
        if not isinstance(self.model, str | os.PathLike | None):
            raise ConfigError("is not valid", "model", value=self.model, allowed="a path, or none")
        check_settings(self)
        object.__setattr__(self, "kv_cache_dtype", read_kv_type(self.kv_cache_dtype))
        speculation = read_speculation(self.speculative_config)
        if speculation is not None:
            object.__setattr__(self, "speculative_config", speculation.write())
        parse_bytes(str(self.memory_limit), 1)
        check_engine(self)
        check_external_cache(self)
        check_peers(self)
        check_parallel(self)
        check_nodes(self)
        check_cache_size(self)

    @property
    def speculation(self) -> SpeculationConfig | None:
        """What `speculative_config` says; None where there is no speculation."""
        return read_speculation(self.speculative_config)

    @property
    def ranks(self) -> int:
        """Processes that compute the model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def local_ranks(self) -> int:
        """Those of one node."""
        return self.ranks // self.nnodes

    @property
    def draft_tokens(self) -> int:
        """Most draft tokens in a step; 0 without speculation."""
        speculation = self.speculation
        return 0 if speculation is None else speculation.num_speculative_tokens

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Settings from keywords, with FLYWEIGHT_ISA read where no instruction set was named;
        unknown names are refused.
        """
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(describe_unknown(name, known))
        isa = given.pop("isa", None) or os.environ.get("FLYWEIGHT_ISA") or None
        return cls(**given, isa=isa)
