"""The command that an unknown word most likely means.

Invariant: what is suggested exists: it is found by walking the groups of commands.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from flyweight.errors import nearest

# Words of other programs, and the command here that does the same.
OTHER_WORDS = {
    "chat": "run",
    "convert": "quantize",
    "download": "pull",
    "list": "models",
}


def suggest_command(word: str, context: Any) -> str:
    """`" (did you mean 'x'?)"`: a command of the group of `context` that is written alike, or one
    of another group, with all its words; else the one of the group that comes nearest.
    """
    root = context.find_root()
    others = {path.split()[-1]: path for path in list_commands(root.command, root.command_path)}
    path = others.get(word) or others.get(OTHER_WORDS.get(word, ""))
    if path is not None:
        return f" (did you mean {path!r}?)"
    here = nearest(word, context.command.commands)
    if here:
        return here
    near = nearest(word, others)
    found = next((others[name] for name in others if repr(name) in near), "")
    if found:
        return f" (did you mean {found!r}?)"
    return f" (nearest: {get_close_matches(word, context.command.commands, 1, 0.0)[0]!r})"


def list_commands(group: Any, path: str) -> Iterator[str]:
    """Every command below a group with the words before it, those of the group itself last."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, f"{path} {name}")
    for name in group.commands:
        yield f"{path} {name}"
