"""The model of the package on small tasks, by lm-eval's own `hf` model and by `eval tasks`:
`python tests/eval/tasks_by_lm_eval.py`, in an environment with torch, transformers, lm-eval and
flyweight (`.ci/full` makes one).  Fails unless every log-likelihood and answer is the same.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import full_models
from flyweight import LLM
from flyweight.bench.kernels import RunListener
from flyweight.eval.harness import HarnessModel

CONTEXT = 96  # shorter than some rows, so that they are cut
EXACT: dict[str, Any] = {"activations": "f32", "kv_cache_dtype": "f32", "threads": 1}
LONG = "One day a little bird sat in the old tree and sang of the rain. Tom saw it and smiled. "
ROWS = [
    {"start": "Once upon a time, there was a", "ends": [" little girl", " little", " tax audit"]},
    {"start": "The cat sat on the mat and ", "ends": ["of of of", "smiled at the dog.", "sat"]},
    {"start": "", "ends": ["Once upon a time", "1789", "One day"]},
    {"start": LONG * 6, "ends": [" Then he", " The"]},
]
SHARED = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{start}}"}
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice", "doc_to_choice": "ends", "doc_to_target": 0,
        "target_delimiter": "", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{start}}!",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "answers": {
        "output_type": "generate_until", "doc_to_target": "{{ends[0]}}",
        "generation_kwargs": {"until": [".", "\n"], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip

# What a model is given; `hf` scores one more token than that, and we score within the context.
HF_LENGTHS = {("choices", "rolling"): CONTEXT - 1, ("answers",): CONTEXT}


def write_tasks(folder: Path) -> None:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, task in TASKS.items():
        own = {"task": name, "dataset_kwargs": {"data_files": {"test": str(rows)}}}
        (folder / f"{name}.yaml").write_text(json.dumps(SHARED | task | own))


def evaluate(
    model: Any, folder: Path, shots: int, tasks: tuple[str, ...], **words: Any
) -> dict[str, list[Any]]:
    """What the model answered, by task."""
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(
        model, tasks=list(tasks), task_manager=manager, num_fewshot=shots, **words
    )
    assert found is not None
    return {task: list_answers(found["samples"][task]) for task in tasks}


def list_answers(samples: list[dict[str, Any]]) -> list[Any]:
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    return [answer for sample in ordered for answer, *_ in sample["resps"]]


def check(task: str, mine: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert mine == wanted, (task, mine, wanted)
        return
    mine, wanted = ((x,) if isinstance(x, float) else x for x in (mine, wanted))
    assert abs(mine[0] - wanted[0]) < 1e-3 and mine[1:] == wanted[1:], (task, mine, wanted)


def main() -> None:
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own) / "tasks"
        folder.mkdir()
        write_tasks(folder)
        model = full_models.write_stories(Path(own) / "stories")
        for shots in (0, 2):
            theirs = {}
            for tasks, longest in HF_LENGTHS.items():
                words = {"pretrained": str(model), "dtype": "float32", "max_length": longest}
                theirs |= evaluate("hf", folder, shots, tasks, model_args=words, device="cpu")
            with LLM(str(model), max_model_len=CONTEXT, **EXACT) as llm:
                ours = evaluate(HarnessModel(llm, RunListener()), folder, shots, tuple(TASKS))
            for task in TASKS:
                for mine, wanted in zip(ours[task], theirs[task], strict=True):
                    check(task, mine, wanted)
                print(f"{task}, {shots} examples before: {len(ours[task])} answers are the same")


if __name__ == "__main__":
    main()
