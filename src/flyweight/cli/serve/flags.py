"""The options of `flyweight serve` by group: the engine's, those made from the fields of
`ServerSettings`, and those that set no field.

Invariant: every setting of the engine and every limit of the server that a user may choose has a
row, under vLLM's name where vLLM has one.
"""

from dataclasses import fields

from flyweight.arguments.flags import ENGINE, MODEL, Flag
from flyweight.server.settings import ServerSettings
from flyweight.validation.setting import KINDS, find_setting

LOG = (
    Flag("disable-log-requests", "switch", "Log no line for a request."),
    Flag("disable-uvicorn-access-log", "switch", "The same as --disable-log-requests."),
    Flag(
        "uvicorn-log-level", "text", "Log requests at info; not at warning, error and critical.",
        metavar="LEVEL",
    ),
)  # fmt: skip
KEY_FILE = Flag("api-key-file", "words", "Files with one key a line.", metavar="FILE ...")
PROCESS = (
    Flag("config", "text", "YAML file of these options; the command line wins.", metavar="FILE"),
    Flag("detach", "switch", "Return when the server is ready; `flyweight stop` ends it."),
    Flag("json", "switch", "Print the banner as one JSON object on stdout."),
)


def of_fields(group: str) -> tuple[Flag, ...]:
    """The options of a group that fields of `ServerSettings` describe."""
    return tuple(
        Flag(
            name=found.option or known.name.replace("_", "-"),
            kind=found.kind or KINDS[known.type],
            help=found.help,
            sets="" if found.special else f"server.{known.name}",
            metavar=found.unit,
            also=found.also,
        )
        for known in fields(ServerSettings)
        if (found := find_setting(known)) is not None and found.group == group
    )


LIMITS = of_fields("Limits")
GROUPS = {
    "Model": MODEL + of_fields("Model"),
    "Engine": ENGINE + of_fields("Engine"),
    "HTTP": (*of_fields("HTTP"), KEY_FILE),
    "Log": of_fields("Log") + LOG,
    "Limits": LIMITS,
    "Process": PROCESS,
}
