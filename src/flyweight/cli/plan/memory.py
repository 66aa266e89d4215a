"""`flyweight plan memory [MODEL]`: memory by the course's formula, and exactly, of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.plan.models import ModelChoice, read_outline
from flyweight.cli.reports import PlotOutput
from flyweight.config import Settings
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.estimate import ExactFinder
    from flyweight.planning.memory import MemoryPlanner, PlannedUse
    from flyweight.planning.memory_report import Place


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Whose memory is compared."""

    device: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Device to compare with; all if none is named."),
    ] = None
    devices: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON file of devices, for the own list.")
    ] = None
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one more device: 12GiB.")
    ] = None
    memory_limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Share of its memory that may be used: 80%.")
    ] = "80%"

    def list_places(self) -> list[Place]:
        """This machine, one of `memory`, and the devices.  Raises `ConfigError`."""
        from pathlib import Path

        from flyweight.config import parse_bytes
        from flyweight.plan.machine import read_machine
        from flyweight.planning.devices import FILE, find_device, read_devices
        from flyweight.planning.memory_report import Place
        from flyweight.planning.quantities import parse_size

        known = read_devices(Path(self.devices).expanduser() if self.devices else FILE)
        chosen = [find_device(name, known) for name in self.device or ()] or known
        sizes = {"this machine": read_machine().total}
        if self.memory is not None:
            sizes["--memory"] = parse_size(self.memory, "memory")
        sizes |= {one.name: one.memory for one in chosen}
        if self.device or self.memory:
            sizes.pop("this machine")
        if self.memory and not self.device:
            sizes = {"--memory": sizes["--memory"]}
        return [
            Place(name, total, min(total, parse_bytes(self.memory_limit, total)))
            for name, total in sizes.items()
        ]


@expand
def memory(
    *,
    choice: ModelChoice,
    params: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of parameters: 8B, 500M.")
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Bits of a weight; of a MODEL's matrices, one number."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Tokens of a sequence.  [default: the model's]"),
    ] = None,
    sequences: Annotated[int, typer.Option(metavar="N", help="Sequences at once.")] = 1,
    draft_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Draft model that is loaded too.")
    ] = None,
    engine: Annotated[
        Values, opt.select_settings("kv_cache_dtype", "threads", "revision", "offline")
    ],
    where: DeviceOptions,
    check: Annotated[
        bool, typer.Option("--check", help="Run the model too, and print its measured peak.")
    ] = False,
    out: PlotOutput,
) -> None:
    """Print the memory that a model, or one of this size, needs.

    With --params alone, the course's formula; with a MODEL, the exact figure next to it, and the
    devices that it fits.  Of a name on the Hub only config.json or a GGUF file's header is fetched.
    """
    out.check()
    model = choice.get_name()
    if params is not None:
        if model is not None:
            raise ConfigError("MODEL and params exclude each other; give one")
        refuse_unused(where, context, sequences, draft_model, check)
        from flyweight.planning.estimate import report_estimates
        from flyweight.planning.quantities import parse_bits, parse_list, parse_params

        sizes = parse_list(params, parse_params, "params")
        widths = parse_list(bits or "16,8,4", parse_bits, "bits")
        report = report_estimates(sizes, widths, make_finder(engine))
    else:
        from flyweight.planning.memory_report import report_memory

        places = where.list_places()
        settings = Settings.of(model=model, **engine)
        planner = open_planner(settings, draft_model)
        use = make_use(planner, settings, (bits, context), sequences)
        measured = measure_use(planner, use) if check else None
        report = report_memory(planner, use, places, measured)
    out.show(report)


def refuse_unused(
    where: DeviceOptions, context: str | None, sequences: int, draft_model: str | None, check: bool
) -> None:
    """Raises `ConfigError` for an option that is only of a MODEL, whose value is checked first."""
    from flyweight.planning.memory import LEAST_CONTEXT, MOST_CONTEXT
    from flyweight.planning.quantities import parse_whole

    where.list_places()
    if context is not None:
        parse_whole(context, "context", LEAST_CONTEXT, MOST_CONTEXT)
    own: dict[str, object] = {
        "context": context, "draft_model": draft_model, "check": check or None
    }  # fmt: skip
    own |= {"sequences": None if sequences == 1 else sequences}
    for name in ("device", "devices", "memory"):
        own[name] = getattr(where, name) or None
    own["memory_limit"] = None if where.memory_limit == "80%" else where.memory_limit
    unused = next((name for name, value in own.items() if value is not None), None)
    if unused is not None:
        raise ConfigError(
            f"{unused} does not apply to params; leave it out, or give a MODEL such as llama-3-8b "
            "in the place of params"
        )


def make_finder(engine: Values) -> ExactFinder:
    """The exact figure of the well-known model that is nearest in size."""
    from functools import cache

    from flyweight.planning.estimate import CONTEXT
    from flyweight.planning.memory import PlannedUse
    from flyweight.planning.outline import KINDS_BY_BITS
    from flyweight.planning.published import find_alike

    opened = cache(lambda name: open_planner(Settings.of(model=name, **engine)))

    def find(params: float, bits: float) -> tuple[int | None, str | None]:
        name = find_alike(params)
        if not name or bits not in KINDS_BY_BITS:
            return None, None
        use = PlannedUse(CONTEXT, kv_dtype=engine["kv_cache_dtype"], bits=bits)
        return opened(name).count_needed(use), name

    return find


def measure_use(planner: MemoryPlanner, use: PlannedUse) -> dict[str, int]:
    """Runs the model in another process.  Raises `ConfigError`."""
    from flyweight.planning.memory_probe import probe_memory

    path = planner.outline.path
    if planner.draft is not None:
        raise ConfigError("check runs one model; leave draft_model out")
    if path is None or use.bits is not None:
        why = "a MODEL whose weights are here" if path is None else "the weights as they are"
        raise ConfigError(f"check needs {why}; leave {'it' if path is None else 'bits'} out")
    options = use.list_options() | {"model": str(path), "threads": planner.cores}
    return probe_memory(options | {"packed_cache": False})


def open_planner(settings: Settings, draft: str | None = None) -> MemoryPlanner:
    """A planner of a model, and of its draft model, whose headers are read here."""
    from flyweight.backends import choose_backend
    from flyweight.plan.machine import measure_resident, read_machine
    from flyweight.planning.memory import MemoryPlanner

    outline = read_outline(settings)
    cores = settings.threads or read_machine().cores
    ops = choose_backend(settings, cores)
    # as an engine finds it: the target's revision is none of the draft model's
    own = replace(settings, model=draft, revision=None, load_format="auto")
    second = None if draft is None else read_outline(own)
    return MemoryPlanner(outline, ops, cores, measure_resident(), second)


def make_use(
    planner: MemoryPlanner,
    settings: Settings,
    given: tuple[str | None, str | None],
    sequences: int,
) -> PlannedUse:
    """The use that the options describe; `given` are bits and context.  Raises `ConfigError`."""
    from flyweight.planning.memory import LEAST_CONTEXT, MOST_CONTEXT, PlannedUse
    from flyweight.planning.quantities import parse_bits, parse_whole

    bits, context = given
    use = PlannedUse(
        parse_whole(context, "context", LEAST_CONTEXT, MOST_CONTEXT)
        if context
        else max(LEAST_CONTEXT, planner.outline.spec.context),
        sequences,
        settings.kv_cache_dtype,
        parse_bits(bits, "bits") if bits else None,
        settings.max_num_batched_tokens,
    )
    use.check()
    return use
