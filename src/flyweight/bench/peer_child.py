"""A peer engine as a process: reads commands as JSON lines on stdin, answers with seconds.

    python peer_child.py openvino MODEL '{"threads": 2, "tokens": 4096, "seqs": 1, "flags": []}'

Invariant: imports the standard library and the peer alone, so that any interpreter that has the
peer can run it; nothing but answers goes to stdout, whatever the peer prints there.

Commands: {"do": "prefill", "before": [ids], "tokens": [ids]}: time of `tokens` after `before`.
{"do": "decode", "prompts": [[ids], ...], "shared": n, "gen": n}: time of `gen` steps of all prompts
at once, the first `shared` tokens of which are the same.  {"do": "generate", ...}: all of it.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, Protocol, TextIO

Ids = list[int]


class PeerEngine(Protocol):
    """The commands of a peer; each returns seconds."""

    version: str

    def prefill(self, before: Ids, tokens: Ids) -> float: ...
    def decode(self, prompts: list[Ids], shared: int, gen: int) -> float: ...
    def generate(self, prompts: list[Ids], gen: int) -> float: ...


class OpenVINO:
    """OpenVINO GenAI's continuous batching, step by step, at its defaults, no prefix cache."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import numpy
        import openvino
        import openvino_genai

        if options["flags"]:
            raise ValueError(f"openvino takes no flags here, not {' '.join(options['flags'])}")
        self.array, self.tensor, self.genai = numpy.array, openvino.Tensor, openvino_genai
        self.version = f"openvino-genai {openvino_genai.__version__}"
        schedule = openvino_genai.SchedulerConfig()
        schedule.cache_size = max(1, -(-int(options["kv_bytes"]) // (1 << 30)))  # GiB
        schedule.max_num_batched_tokens = max(4096, options["seqs"])
        schedule.max_num_seqs = max(256, options["seqs"])
        schedule.enable_prefix_caching = False
        threads = {"INFERENCE_NUM_THREADS": options["threads"]}
        self.pipe = openvino_genai.ContinuousBatchingPipeline(model, schedule, "CPU", threads)
        self.ids = 0

    def prefill(self, before: Ids, tokens: Ids) -> float:
        """What comes before cannot be kept, so its own time is taken away."""
        whole = self.generate([before + tokens], 1)
        return whole - self.generate([before], 1) if before else whole

    def decode(self, prompts: list[Ids], shared: int, gen: int) -> float:
        handles = [self._add(prompt, gen + 64) for prompt in prompts]
        waiting = list(handles)
        while waiting:  # until each has its first token
            self.pipe.step()
            waiting = [handle for handle in waiting if not handle.can_read()]
        start = time.perf_counter()
        for _ in range(gen):
            self.pipe.step()
        seconds = time.perf_counter() - start
        for handle in handles:
            handle.cancel()
        self._finish()
        return seconds

    def generate(self, prompts: list[Ids], gen: int) -> float:
        start = time.perf_counter()
        handles = [self._add(prompt, gen) for prompt in prompts]
        self._finish()
        seconds = time.perf_counter() - start
        del handles  # dropped ones would end their requests
        return seconds

    def _finish(self) -> None:
        while self.pipe.has_non_finished_requests():
            self.pipe.step()

    def _add(self, prompt: Ids, gen: int) -> Any:
        config = self.genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = gen
        config.ignore_eos, config.do_sample = True, False
        self.ids += 1
        tensor = self.tensor(self.array([prompt], dtype="int64"))
        return self.pipe.add_request(self.ids, tensor, config)


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level functions, as llama-bench calls them: batches
    of tokens, no sampling; flash attention as `-fa on|off|auto` says.
    """

    UBATCH = 512

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import llama_cpp

        self.lib, self.seqs = llama_cpp, options["seqs"]
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), params)
        if not self.model:
            raise ValueError(f"llama.cpp cannot read {model}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = options["tokens"] + 256
        context.n_batch, context.n_ubatch = 2048, self.UBATCH
        context.n_seq_max = self.seqs
        context.n_threads = context.n_threads_batch = options["threads"]
        context.kv_unified = True
        self._set_flags(options["flags"], context)
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            raise ValueError("llama.cpp refuses the requested context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)
        self.kept: list[Ids] = []
        self._run([(1, 0, 0)])  # a warm-up, as llama-bench makes

    def _set_flags(self, flags: list[str], context: Any) -> None:
        words = {"auto": -1, "off": 0, "0": 0, "on": 1, "1": 1}
        if flags and (len(flags) != 2 or flags[0] != "-fa" or flags[1] not in words):
            raise ValueError(f"llama-cpp-python takes -fa on|off|auto, not {' '.join(flags)}")
        if flags:
            context.flash_attn_type = words[flags[1]]

    def prefill(self, before: Ids, tokens: Ids) -> float:
        self._fill([before], 0)
        start = time.perf_counter()
        self._run_prompt(tokens, len(before), 0)
        return time.perf_counter() - start

    def decode(self, prompts: list[Ids], shared: int, gen: int) -> float:
        self._fill(prompts, shared)
        start = time.perf_counter()
        self._run_steps(prompts, gen)
        return time.perf_counter() - start

    def generate(self, prompts: list[Ids], gen: int) -> float:
        """One batch after another of as many prompts as there are sequences; the first token comes
        with the prompt.
        """
        start = time.perf_counter()
        self.kept = []
        for at in range(0, len(prompts), self.seqs):
            now = prompts[at : at + self.seqs]
            self._fill(now, 0)
            self._run_steps(now, gen - 1)
        return time.perf_counter() - start

    def _fill(self, prompts: list[Ids], shared: int) -> None:
        """Computes the prompts; where they are the last ones again, forgets what came after."""
        if self.kept == prompts:
            for seq, prompt in enumerate(prompts):
                self.lib.llama_memory_seq_rm(self.memory, seq, len(prompt), -1)
            return
        self._clear()
        self.kept = prompts
        self._run_prompt(prompts[0][:shared], 0, 0)
        for seq in range(1, len(prompts) if shared else 0):
            self.lib.llama_memory_seq_cp(self.memory, 0, seq, 0, shared)
        for seq, prompt in enumerate(prompts):
            self._run_prompt(prompt[shared:], shared, seq)

    def _run_steps(self, prompts: list[Ids], gen: int) -> None:
        for step in range(gen):
            self._run([(1 + step, len(p) + step, seq) for seq, p in enumerate(prompts)], every=True)

    def _run_prompt(self, tokens: Ids, first: int, seq: int) -> None:
        for start in range(0, len(tokens), 2048):
            part = tokens[start : start + 2048]
            self._run([(token, first + start + i, seq) for i, token in enumerate(part)])

    def _run(self, rows: list[tuple[int, int, int]], every: bool = False) -> None:
        """Computes (token, position, sequence)s; logits of the last, or of every one."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, seq) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            batch.logits[i] = every or i == len(rows) - 1
        if self.lib.llama_decode(self.context, batch):
            raise ValueError("llama_decode refuses the batch: its context is too small")
        self.lib.llama_synchronize(self.context)

    def _clear(self) -> None:
        self.lib.llama_memory_clear(self.memory, True)


class Transformers:
    """Plain PyTorch: a model of transformers called step by step, its weights in float32 or in the
    type that `-dtype` names; of GGUF files it makes floats first.
    """

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        import transformers

        self.torch, self.seqs = torch, options["seqs"]
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        torch.set_num_threads(options["threads"])
        torch.set_grad_enabled(False)
        folder, file = os.path.split(model)
        where = {"gguf_file": file} if file.endswith(".gguf") else {}
        kind = self._find_type(options["flags"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder if where else model, dtype=kind, **where
        ).eval()

    def _find_type(self, flags: list[str]) -> Any:
        names = ("float32", "bfloat16", "float16")
        if flags and (len(flags) != 2 or flags[0] != "-dtype" or flags[1] not in names):
            raise ValueError(f"transformers takes -dtype {'|'.join(names)}, not {' '.join(flags)}")
        return getattr(self.torch, flags[1] if flags else "float32")

    def prefill(self, before: Ids, tokens: Ids) -> float:
        kept = self._run([before], None) if before else None
        start = time.perf_counter()
        self._run([tokens], kept)
        return time.perf_counter() - start

    def decode(self, prompts: list[Ids], shared: int, gen: int) -> float:
        kept = self._run(prompts, None)
        start = time.perf_counter()
        for step in range(gen):
            kept = self._run([[1 + step]] * len(prompts), kept)
        return time.perf_counter() - start

    def generate(self, prompts: list[Ids], gen: int) -> float:
        """Batches of as many prompts as there are sequences; all have the same length."""
        start = time.perf_counter()
        for at in range(0, len(prompts), self.seqs):
            self.decode(prompts[at : at + self.seqs], 0, gen - 1)
        return time.perf_counter() - start

    def _run(self, rows: list[Ids], kept: Any) -> Any:
        """K and V after `rows`, one for each sequence; logits of the last tokens."""
        ids = self.torch.tensor(rows)
        out = self.model(ids, past_key_values=kept, use_cache=True, logits_to_keep=1)
        return out.past_key_values


ENGINES: dict[str, type[OpenVINO] | type[LlamaCpp] | type[Transformers]] = {
    "openvino": OpenVINO,
    "llama.cpp": LlamaCpp,
    "transformers": Transformers,
}


def die_with_parent() -> None:
    """A stopped process whose parent was killed would stay forever; Linux ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def open_answers() -> TextIO:
    """Where answers go; what a library prints to stdout goes to stderr from here on."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def main() -> None:
    kind, model, options = sys.argv[1:4]
    die_with_parent()
    out = open_answers()

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=out, flush=True)

    start = time.perf_counter()
    try:
        engine: PeerEngine = ENGINES[kind](model, json.loads(options))
    except ImportError as error:
        return say({"missing": error.name or str(error)})
    except Exception as error:  # whatever a peer says is its answer
        return say({"error": str(error)})
    say({"version": engine.version, "load_s": time.perf_counter() - start})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            say({"seconds": getattr(engine, command.pop("do"))(**command)})
        except Exception as error:
            say({"error": str(error)})
    return None


if __name__ == "__main__":
    main()
