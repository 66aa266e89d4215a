"""How far a job has come, kept so that it can be resumed after it was killed.

Invariant: a layer is listed only after its tensors are on the disk.
"""

from dataclasses import dataclass
from pathlib import Path

from flyweight.errors import ConfigError
from flyweight.quantize.output.folder import find_draft, write_json
from flyweight.validation.untrusted import read_json

NAME = "journal.json"
MODEL = "model"  # folder of the unfinished model, next to the journal
MEASURED = "measurements.jsonl"  # of a choice of types, next to the journal


def find_work(out: Path) -> Path:
    """The folder of a job until its output has its final name."""
    return out.with_name(f"{out.name}.partial")


def check_folder(folder: Path) -> None:
    """Raises `ConfigError` where a folder has files of others."""
    known = {NAME, find_draft(folder / NAME).name, MODEL, MEASURED}
    if any(entry.name not in known for entry in folder.iterdir()):
        raise ConfigError("has files that no job here wrote; remove it", "out", value=str(folder))


def refuse_other(folder: Path) -> ConfigError:
    """The folder is that of another job."""
    return ConfigError(
        "has an unfinished job with other options or another input; remove it, or give the same "
        "options to resume it", "out", value=str(folder),
    )  # fmt: skip


@dataclass(slots=True)
class Journal:
    """`job` identifies input and options; `top` whether the tensors outside of layers are written,
    `layers` how many layers are.
    """

    path: Path
    job: str
    top: bool = False
    layers: int = 0

    @classmethod
    def open(cls, folder: Path, job: str, weights: Path) -> "Journal":
        """The journal of a job in this folder, or a new one: also where `weights` are gone.  Raises
        `ConfigError` where the folder has another job.
        """
        path = folder / NAME
        if not path.is_file():
            check_folder(folder)
            return cls(path, job)
        found = read_json(path)
        if found.get("job") != job:
            raise refuse_other(folder)
        if not weights.is_file():
            return cls(path, job)
        return cls(path, job, bool(found.get("top")), int(found.get("layers", 0)))

    def save(self) -> None:
        write_json(self.path, {"job": self.job, "top": self.top, "layers": self.layers})
