"""What `eval/harness.py` needs of lm-eval, in a page: two tasks, scored as lm-eval would.

Invariant: names, arguments and the shape of results are lm-eval's; `tests/eval/tasks_by_lm_eval.py`
runs the real one.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

DOCUMENTS = [("the cat sat on", " the mat", " the the"), ("a bird", " sang", " of rain")]
asked: list[dict[str, Any]] = []  # the keywords of each `simple_evaluate`


class TemplateLM:
    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        pairs = []
        for request in requests:
            context, text = request.args
            start = self.tok_encode(context)  # type: ignore[attr-defined]
            whole = self.tok_encode(context + text)  # type: ignore[attr-defined]
            pairs.append((request.args, start, whole[len(start) :]))
        return self._loglikelihood_tokens(pairs)  # type: ignore[attr-defined, no-any-return]


class TaskManager:
    all_tasks = ("choices", "answers", "lost")

    def __init__(self, include_path: str | None = None) -> None:
        self.include_path = include_path

    def match_tasks(self, names: list[str]) -> list[str]:
        return [name for name in self.all_tasks if name in names or names == ["*s"]]

    def load(self, names: list[str]) -> list[str]:
        if "lost" in names:
            raise ConnectionError("Couldn't reach 'lost' on the Hub\nand a traceback")
        return names


def simple_evaluate(model: Any, tasks: list[str], task_manager: Any, **words: Any) -> Any:
    asked.append({"tasks": tasks, "folder": task_manager.include_path, **words})
    results: dict[str, Any] = {}
    documents = DOCUMENTS[: words["limit"]]
    for task in task_manager.load(tasks):
        if task == "answers":
            make = model.apply_chat_template if words["apply_chat_template"] else plain
            texts = [make([{"role": "user", "content": start}]) for start, *_ in documents]
            options = {"until": ["q"], "max_gen_toks": 8}
            found = model.generate_until([SimpleNamespace(args=(t, options)) for t in texts])
            rolled = model.loglikelihood_rolling([SimpleNamespace(args=(t,)) for t in texts])
            results[task] = {"length,first": len(found[0]), "nll,none": -sum(rolled)}
            continue
        requests = [SimpleNamespace(args=(a, end)) for a, *ends in documents for end in ends]
        found = [total for total, _ in model.loglikelihood(requests)]
        right = [found[i] > found[i + 1] for i in range(0, len(found), 2)]
        share = sum(right) / len(right)
        results[task] = {"alias": task, "acc,none": share, "acc_stderr,none": 0.25}
        results["all"] = {"alias": "all", "acc,none": share, "acc_stderr,none": "N/A"}
    counts = {task: {"effective": len(documents)} for task in results if task != "all"}
    return {
        "results": results, "n-samples": counts, "n-shot": dict.fromkeys(counts, 0), "samples": [],
    }  # fmt: skip


def plain(messages: list[dict[str, str]]) -> str:
    return messages[0]["content"]


def cut_windows(tokens: list[int], prefix: int, longest: int, context: int) -> Any:
    assert len(tokens) <= longest and context == 1
    yield [prefix, *tokens[:-1]], tokens


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts it in the place of lm-eval, installed or not."""
    contents: dict[str, dict[str, Any]] = {
        "lm_eval": {"__version__": "0", "simple_evaluate": simple_evaluate},
        "lm_eval.api": {},
        "lm_eval.api.model": {"TemplateLM": TemplateLM},
        "lm_eval.tasks": {"TaskManager": TaskManager},
        "lm_eval.utils": {
            "get_rolling_token_windows": cut_windows,
            "make_disjoint_window": lambda pair: (pair[0][:1], pair[1]),
        },
    }
    for name, members in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "flyweight.eval.harness", raising=False)
    asked.clear()
