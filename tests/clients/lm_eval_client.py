"""EleutherAI's lm-eval over /v1: `lm_eval_client.py URL MODEL KEY`.

Log-likelihoods over /v1/completions (`echo`, `logprobs`, the server's tokenizer), generation over
/v1/chat/completions.  The sums are compared with those of the offline engine where
FLYWEIGHT_PYTHON names a Python that has it, and FLYWEIGHT_MODEL the file that is served.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

ROWS = [
    {"start": "Once upon a time, there was a", "ends": [" little girl", " tax audit"], "best": 0},
    {
        "start": "The cat sat on the mat and",
        "ends": [" of of of", " smiled at the dog."],
        "best": 1,
    },
    {"start": "Tom and his mom went to the", "ends": [" park to play", " 1789"], "best": 0},
]
CHOICES = {
    "task": "choices", "dataset_path": "json", "test_split": "test",
    "output_type": "multiple_choice", "doc_to_text": "{{start}}", "doc_to_choice": "ends",
    "doc_to_target": "best", "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}  # fmt: skip
ANSWERS = {
    "task": "answers", "dataset_path": "json", "test_split": "test",
    "output_type": "generate_until", "doc_to_text": "{{start}}", "doc_to_target": "best",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 24, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip
OFFLINE = """
import json, sys
from flyweight import LLM, SamplingParams
llm = LLM(sys.argv[1])
requested = json.load(sys.stdin)
tokenizer = llm.get_tokenizer()
wholes = [tokenizer.encode(a + b, add_special_tokens=False) for a, b in requested]
starts = [len(tokenizer.encode(a, add_special_tokens=False)) for a, _ in requested]
params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
found = []
for ids, start in zip(wholes, starts):
    (out,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    scores = [row[one] for row, one in zip(out.prompt_logprobs[start:], ids[start:])]
    found.append([sum(s.logprob for s in scores), all(s.rank == 1 for s in scores)])
print(json.dumps(found))
"""


def offline(pairs: list[tuple[str, str]]) -> list[tuple[float, bool]] | None:
    """Log-likelihoods of the second texts after the first, and whether they are greedy."""
    python, model = os.environ.get("FLYWEIGHT_PYTHON"), os.environ.get("FLYWEIGHT_MODEL")
    if not python or not model:
        return None
    given = json.dumps(pairs)
    path = os.environ.get("FLYWEIGHT_PYTHONPATH", "")
    done = subprocess.run([python, "-c", OFFLINE, model], input=given, text=True, check=True,
                          stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    return [(score, greedy) for score, greedy in json.loads(done.stdout)]


def evaluated(folder: Path, task: dict[str, Any], model: str, **words: Any) -> list[dict[str, Any]]:
    """The samples of a task on the rows above."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    kwargs = {"data_files": {"test": str(rows)}}
    (folder / f"{task['task']}.yaml").write_text(json.dumps({**task, "dataset_kwargs": kwargs}))
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(model=model, tasks=[task["task"]], task_manager=tasks,
                            bootstrap_iters=0, **words)  # fmt: skip
    return sorted(found["samples"][task["task"]], key=lambda one: one["doc_id"])


def main() -> None:
    url, name, key = sys.argv[1:]
    os.environ["OPENAI_API_KEY"] = key
    given = {"model": name, "num_concurrent": 2, "max_retries": 1, "auth_token": key}
    with tempfile.TemporaryDirectory() as folder:
        scored = {**given, "base_url": f"{url}/v1/completions", "tokenizer_backend": "remote"}
        samples = evaluated(
            Path(folder), CHOICES, "local-completions", model_args=scored, batch_size=2
        )
        pairs = [(row["start"], end) for row in ROWS for end in row["ends"]]
        scores = [tuple(one) for sample in samples for one in sample["filtered_resps"]]
        expected = offline(pairs)
        for i, wanted in enumerate(expected or []):
            assert abs(scores[i][0] - wanted[0]) < 1e-3 and scores[i][1] == wanted[1], (
                pairs[i], scores[i], wanted,
            )  # fmt: skip
        assert [sample["acc"] for sample in samples] == [1.0] * len(ROWS), scores
        talked = {**given, "base_url": f"{url}/v1/chat/completions"}
        samples = evaluated(
            Path(folder), ANSWERS, "local-chat-completions", model_args=talked,
            apply_chat_template=True,
        )  # fmt: skip
        assert all(isinstance(one["resps"][0][0], str) for one in samples)
        assert any(one["resps"][0][0] for one in samples)


if __name__ == "__main__":
    main()
