"""`flyweight eval tasks MODEL --tasks NAME,...`: lm-eval's tasks in this process, on our engine.

Invariant: unknown tasks and a missing lm-eval are refused before the model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from flyweight import __version__
from flyweight.cli import options as opt
from flyweight.cli.eval import show_progress
from flyweight.cli.parameters import Values, expand
from flyweight.errors import ConfigError

Tasks = Annotated[
    str,
    typer.Option(
        metavar="NAME,...", help="Tasks, groups, tags or patterns of lm-eval, or YAML files."
    ),
]
IncludePath = Annotated[
    str | None, typer.Option(metavar="DIR", help="A folder with more tasks as YAML files.")
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="Documents of each task.  [default: all]", min=1)
]
Shots = Annotated[
    int | None,
    typer.Option(metavar="N", help="Examples before each document.  [default: the task's]", min=0),
]
ChatTemplate = Annotated[
    bool, typer.Option("--apply-chat-template", help="Prompt through the model's chat template.")
]
Output = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the figures as JSON to a file too.")
]
Engine = Annotated[
    Values,
    opt.select_settings(
        "memory_limit", "threads", "activations", "kv_cache_dtype", "max_model_len", "revision",
        "offline", max_num_seqs=16,
    ),
]  # fmt: skip


@expand
def tasks(
    *,
    model: opt.Model,
    tasks: Tasks,
    include_path: IncludePath = None,
    limit: Limit = None,
    num_fewshot: Shots = None,
    apply_chat_template: ChatTemplate = False,
    output: Output = None,
    engine: Engine,
    as_json: opt.AsJson = False,
) -> None:
    """Run tasks of lm-eval, such as hellaswag or gsm8k, on the engine.

    lm-eval makes the prompts and the figures; it downloads the data sets that tasks name.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError("needs lm-eval", "eval tasks", hint="pip install 'flyweight[eval]'")
    from flyweight.eval.harness import TaskPlan, evaluate_tasks

    names = tuple(name.strip() for name in tasks.split(",") if name.strip())
    if not names:
        raise ConfigError("names no task", "tasks", value=tasks)
    folder, file = check_paths(include_path, output)
    plan = TaskPlan(names, folder, limit, num_fewshot, apply_chat_template)
    with show_progress(not as_json) as tell:
        found = evaluate_tasks(model, plan, engine, tell)
    run = {name: engine[name] for name in ("activations", "kv_cache_dtype", "max_model_len")}
    document = {"model": model, **run, **found, "flyweight": __version__}
    if file is not None:
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(document))
        return
    for row in format_results(found):
        print(row)


def check_paths(include: str | None, output: str | None) -> tuple[Path | None, Path | None]:
    """The folder of tasks and the file to write.  Raises `ConfigError`."""
    folder = None if include is None else Path(include).expanduser()
    if folder is not None and not folder.is_dir():
        raise ConfigError("is no folder", "include_path", value=include)
    file = None if output is None else Path(output).expanduser()
    if file is not None and not file.parent.is_dir():
        raise ConfigError("has no folder to be in", "output", value=output)
    return folder, file


def format_results(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each figure: lm-eval keys a figure by its name and its filter."""
    width = max(map(len, found["results"]))
    for task, figures in found["results"].items():
        count = found["n-samples"].get(task, {}).get("effective")
        shots = found["n-shot"].get(task)
        about = f"{count} documents, {shots}-shot" if count is not None else "group"
        yield f"{task:{width}}  {about}"
        for key, value in figures.items():
            name, comma, kind = key.partition(",")
            if not comma or name.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = figures.get(f"{name}_stderr,{kind}")
            shown = f"{value:.4f}" + (f" ± {error:.4f}" if isinstance(error, float) else "")
            filtered = "" if kind == "none" else f" ({kind})"
            yield f"{'':{width}}  {name + filtered}: {shown}"
