"""EleutherAI's lm-eval with our engine as its model.

Invariant: tasks, prompts, the split of context and continuation, and metrics are lm-eval's; numbers
are the engine's.  The only module that imports lm-eval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval import __version__, simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from flyweight.errors import ConfigError, FlyweightError, nearest
from flyweight.eval.session import EvalListener
from flyweight.eval.tasks import Likelihood, generate_answers, read_generation, score_continuations
from flyweight.eval.windows import Window
from flyweight.llm import LLM

RESULTS = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better")


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What to evaluate: names of tasks, groups and tags, or patterns of names, or YAML files;
    `folder` has more tasks.  `limit` is documents of each task, `shots` examples before each.
    """

    names: tuple[str, ...]
    folder: Path | None = None
    limit: int | None = None
    shots: int | None = None
    chat: bool = False


class TaskLoader(TaskManager):  # type: ignore[misc]
    """Loads tasks.  Whatever keeps one from being loaded, such as a data set that cannot be
    downloaded, is raised as `ConfigError`.
    """

    def load(self, task_list: Any) -> Any:
        try:
            return super().load(task_list)
        except FlyweightError:
            raise
        except Exception as error:
            why = str(error).strip().splitlines()
            raise ConfigError(
                f"cannot be loaded: {type(error).__name__}: {why[0] if why else ''}", "tasks"
            ) from error

    def resolve(self, names: Sequence[str]) -> list[str]:
        """What to load.  Raises `ConfigError` for a name that is unknown."""
        found: dict[str, None] = {}
        for name in names:
            if name.endswith((".yaml", ".yml")):
                path = Path(name).expanduser()
                if not path.is_file():
                    raise ConfigError("is no file", "tasks", value=name)
                found[str(path.resolve())] = None
                continue
            matches = self.match_tasks([name])
            if not matches:
                hint = nearest(name, self.all_tasks)
                raise ConfigError(f"is no task of lm-eval{hint}", "tasks", value=name)
            found.update(dict.fromkeys(matches))
        return list(found)


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """An `LLM` as lm-eval's model."""

    def __init__(self, llm: LLM, tell: EvalListener) -> None:
        super().__init__()
        self.llm, self.tell = llm, tell
        self.tokenizer = llm.get_tokenizer()
        self.max_length = llm.loaded.limits.max_model_len - 1  # the last token is only scored

    @property
    def eot_token_id(self) -> int:
        end = self.tokenizer.eos_token_id
        if end is None:
            raise ConfigError("has no end-of-sequence token, which tasks need", "model")
        return end

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return str(self.llm.settings.model).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **unused: Any
    ) -> list[int]:
        """A text that begins with the spelling of the beginning token gets no second one."""
        prefix = self.tokenizer.decode(self.prefix_token_id)
        begins = prefix != "" and string.startswith(prefix)
        special = not begins if add_special_tokens is None else add_special_tokens
        return self.tokenizer.encode(string, special)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **unused: Any
    ) -> list[tuple[float, bool]]:
        found = self.score([pair for _, *pair in requests])
        return [(one.total, one.greedy) for one in found]

    def loglikelihood_rolling(self, requests: Sequence[Any], **unused: Any) -> list[float]:
        pairs, counts = [], []
        for request in requests:
            tokens = self.tok_encode(request.args[0])
            cut = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            windows = [make_disjoint_window(window) for window in cut]
            pairs += windows
            counts.append(len(windows))
        totals = iter(one.total for one in self.score(pairs))
        return [sum(next(totals) for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], **unused: Any) -> list[str]:
        prompts = [
            (self.tok_encode(text), read_generation(options))
            for text, options in (request.args for request in requests)
        ]
        return generate_answers(self.llm, prompts, partial(self.tell.round, "answering"))

    def score(self, pairs: Sequence[Sequence[list[int]]]) -> list[Likelihood]:
        """Of continuations after contexts, of which the last tokens count where they are too
        long.  An empty continuation is certain.
        """
        windows = {
            i: Window(tuple((context + text)[-self.max_length - 1 :]), len(text))
            for i, (context, text) in enumerate(pairs)
            if text
        }
        report = partial(self.tell.round, "scoring")
        scored = score_continuations(self.llm, list(windows.values()), report)
        found = dict(zip(windows, scored, strict=True))
        return [found.get(i, Likelihood(0.0, True)) for i in range(len(pairs))]


def evaluate_tasks(
    model: str, plan: TaskPlan, engine: Mapping[str, Any], tell: EvalListener
) -> dict[str, Any]:
    """lm-eval's figures by task, without its samples.  Raises `ConfigError`, for tasks before the
    model is loaded.
    """
    include = str(plan.folder) if plan.folder is not None else None
    manager = TaskLoader(include_path=include)
    names = manager.resolve(plan.names)
    with LLM(model, notify=tell, **engine) as llm:
        found = simple_evaluate(
            model=HarnessModel(llm, tell),
            tasks=names,
            num_fewshot=plan.shots,
            limit=plan.limit,
            apply_chat_template=plan.chat,
            task_manager=manager,
            log_samples=False,
        )
    kept = {name: found[name] for name in RESULTS if name in found}
    return kept | {"lm_eval": __version__}
