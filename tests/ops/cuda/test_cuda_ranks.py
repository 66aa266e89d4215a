"""Several ranks on the CUDA backend: the tokens of one process, the same bits in any batch; and
what is decided before they start.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flyweight import LLM, SamplingParams
from flyweight.backends import choose_backend, read_place
from flyweight.cli.main import main
from flyweight.config import Settings
from flyweight.describe import describe, find_here
from flyweight.errors import ConfigError
from flyweight.model_memory import NCCL_RESERVE, make_memory_plan, measure_needs
from flyweight.ops.cuda import CudaOps, gpu_memory
from flyweight.ops.cuda import backend as cuda_backend
from flyweight.ops.cuda import device as cuda_device
from flyweight.ops.cuda.device import find_device
from flyweight.parallel.device_comm import DeviceGroup
from flyweight.parallel.pipeline import PipelineStage
from flyweight.parallel.processes import LeadingRunner
from flyweight.parallel.sharding import list_places
from flyweight.plan.machine import DEVICE_RESERVE, Machine
from tiny_model import tiny_folder

GPUS = torch.cuda.device_count()
CORRECTED = "from interpreter_fixes import correct_interpreter\n\ncorrect_interpreter()\n"
PROMPTS: list[Any] = [{"prompt_token_ids": ids} for ids in ([7, 100, 31], [40], [12, 9, 3, 250])]
GREEDY = SamplingParams(temperature=0, max_tokens=3, logprobs=1, ignore_eos=True)
DRAWN = SamplingParams(temperature=1, seed=3, max_tokens=2, logprobs=1, ignore_eos=True)
GIB = 1 << 30
Answers = list[tuple[list[int], list[float]]]
needs_gpus = pytest.mark.skipif(GPUS == 1, reason="there is one GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tiny Llama.  Without a GPU, the other ranks' interpreter is corrected as ours is."""
    made = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        if not GPUS:
            (made / "site").mkdir()
            (made / "site" / "sitecustomize.py").write_text(CORRECTED)
            paths = str(made / "site"), str(Path(__file__).parent), os.environ.get("PYTHONPATH")
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        (made / "model").mkdir()
        yield tiny_folder(made / "model")


def load(folder: Path, tensor: int = 1, pipeline: int = 1, activations: str = "f32") -> LLM:
    return LLM(
        folder, device="cuda", tensor_parallel_size=tensor, pipeline_parallel_size=pipeline,
        activations=activations, max_model_len=32, deterministic=True,
    )  # fmt: skip


def generate(llm: LLM, prompts: list[Any], params: SamplingParams = GREEDY) -> Answers:
    """Tokens and their log-probabilities."""
    found = []
    for out in llm.generate(prompts, params, use_tqdm=False):
        (choice,) = out.outputs
        scores = [step[i].logprob for step, i in zip(choice.logprobs or (), choice.token_ids,
                  strict=True)]  # fmt: skip
        found.append(([*choice.token_ids], scores))
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> Answers:
    with load(folder) as llm:
        return generate(llm, PROMPTS)


@needs_gpus
def test_two_ranks_have_the_tokens_of_one_process_and_the_same_bits_again(
    folder: Path, alone: Answers
) -> None:
    """Alone, and in one batch."""
    with load(folder, tensor=2) as llm:
        runner: Any = llm.loaded.engine.runner
        assert isinstance(runner, LeadingRunner)
        assert isinstance(runner.runner.model.comm, DeviceGroup)
        together = generate(llm, PROMPTS)
        assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
        assert generate(llm, PROMPTS[:1]) == together[:1]
        drawn = generate(llm, PROMPTS[:2], DRAWN)
        assert generate(llm, PROMPTS[1:2], DRAWN) == drawn[1:]


@needs_gpus
def test_two_stages_have_the_bits_of_one_process(folder: Path, alone: Answers) -> None:
    with load(folder, pipeline=2) as llm:
        runner: Any = llm.loaded.engine.runner
        assert isinstance(runner.runner.model, PipelineStage)
        assert generate(llm, PROMPTS) == alone


@pytest.mark.long
@pytest.mark.skipif(0 < GPUS < 4, reason="there are fewer than four GPUs")
def test_two_stages_of_two_ranks_in_bfloat16(folder: Path) -> None:
    """The bits of one stage of two ranks."""
    with load(folder, tensor=2, activations="bf16") as llm:
        want = generate(llm, PROMPTS)
    with load(folder, tensor=2, pipeline=2, activations="bf16") as llm:
        assert generate(llm, PROMPTS) == want


def count_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> CudaOps:
    """Has this host seem to have some GPUs; an op table of it."""
    monkeypatch.setattr(cuda_backend, "count_devices", lambda device: count)
    return CudaOps("cpu")


@pytest.mark.parametrize(
    ("tensor", "pipeline", "gpus", "refusal"),
    [
        (6, 1, 4, "tensor_parallel_size = 6 needs a GPU for each of 6 ranks of this host, which "
                  "has 4; nearest valid: tensor_parallel_size = 2"),
        (1, 3, 2, "pipeline_parallel_size = 3 needs a GPU for each of 3 ranks of this host, which "
                  "has 2; nearest valid: pipeline_parallel_size = 2"),
        (3, 2, 4, "tensor_parallel_size = 3 needs a GPU for each of 6 ranks of this host, which "
                  "has 4; nearest valid: tensor_parallel_size = 2"),
        (2, 1, 1, "tensor_parallel_size = 2 needs a GPU for each of 2 ranks of this host, which "
                  "has 1; nearest valid: tensor_parallel_size = 1"),
    ],
)  # fmt: skip
def test_more_ranks_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, tensor: int, pipeline: int, gpus: int, refusal: str
) -> None:
    """The story model has 6 heads and 2 K/V heads, which 3 or 4 ranks cannot share."""
    path = find_here("stories")
    assert path is not None
    ops, found = count_gpus(monkeypatch, gpus), describe(path)
    settings = Settings(
        backend="cuda", tensor_parallel_size=tensor, pipeline_parallel_size=pipeline
    )
    with pytest.raises(ConfigError) as refused:
        list_places(settings, found, ops)
    assert str(refused.value) == refusal
    assert len(list_places(settings, found, count_gpus(monkeypatch, 6))) == tensor * pipeline


def test_a_command_refuses_more_ranks_than_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_gpus(monkeypatch, 1)
    assert main(["run", "Once", "--device", "cuda", "-tp", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: tensor_parallel_size = 2 needs a GPU for each of 2 ranks")


def test_ranks_do_not_divide_whole_experts() -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(backend="cuda", tensor_parallel_size=2, enable_expert_parallel=True)
    assert str(refused.value) == (
        "enable_expert_parallel = True is not supported with backend = 'cuda'; leave one of them "
        "out"
    )


def test_a_rank_has_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process keeps the GPU that is current."""
    current = [1]
    for name, call in (
        ("is_available", lambda: True), ("device_count", lambda: 3),
        ("set_device", lambda number: current.__setitem__(0, number)),
        ("current_device", lambda: current[0]), ("get_device_capability", lambda *_: (9, 0)),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, call)
    assert find_device() == torch.device("cuda", 1)
    assert find_device(2) == torch.device("cuda", 2)
    assert find_device(0) == torch.device("cuda", 0)


def test_several_ranks_compute_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    monkeypatch.setattr(
        "flyweight.ops.cuda.CudaOps", lambda *_, graphs, **others: made.append(graphs)
    )
    for ranks in (1, 2):
        choose_backend(Settings(backend="cuda", pipeline_parallel_size=ranks), 1)
    assert made == [True, False]


def test_the_plan_is_of_the_gpu_with_the_least_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that ranks of this host have, and its own limit is not divided."""
    memories = [(80 * GIB, 70 * GIB), (24 * GIB, 20 * GIB), (80 * GIB, 60 * GIB)]
    ops = CudaOps("cpu")
    monkeypatch.setattr(ops, "read_memory", lambda: memories[0])
    monkeypatch.setattr(ops, "read_memories", lambda count: memories[:count])
    settings = [Settings(backend="cuda", tensor_parallel_size=n) for n in (1, 2, 3)]
    found = [read_place(one, ops) for one in settings]
    assert [(one.total, one.available) for one in found] == [memories[0], *[memories[1]] * 2]
    path = find_here("stories")
    assert path is not None and all(one.device for one in found)
    model = describe(path)
    needs = measure_needs(model.checkpoint, model.spec, model.plan, ops)
    alone, pair = (
        make_memory_plan(one, needs, Machine(8, 80 * GIB, 70 * GIB, device=True))
        for one in settings[:2]
    )
    assert alone.base == 10 * GIB + DEVICE_RESERVE and pair.base == alone.base + NCCL_RESERVE
    assert pair.limit == alone.limit and pair.sizing.local_ranks == 1


def test_memory_of_other_gpus_is_read_by_another_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That process holds some of it while it runs."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (50 + number, 100))
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command[1:])
        gpu_memory.main(command[4:])
        return SimpleNamespace(returncode=0, stdout=capsys.readouterr().out)

    monkeypatch.setattr("subprocess.run", run)
    assert cuda_device.read_memories([1, 2]) == [(100, 51), (100, 52)]
    assert commands == [["-P", "-m", "flyweight.ops.cuda.gpu_memory", "1", "2"]]
    assert cuda_device.read_memories([]) == [] and len(commands) == 1
    failed = SimpleNamespace(returncode=1, stderr="Traceback\nRuntimeError: no GPU 2\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    with pytest.raises(ConfigError) as refused:
        cuda_device.read_memories([1, 2])
    assert str(refused.value) == "the memory of GPUs 1, 2 cannot be read: RuntimeError: no GPU 2"
