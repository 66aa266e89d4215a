"""A GPU that is requested: what is said of it, also where torch or Triton cannot be imported."""

import sys

import pytest

from flyweight.arguments.engine import choose_engine
from flyweight.backends import choose_backend
from flyweight.config import Settings
from flyweight.errors import ConfigError


class Failing:
    """Finds flyweight.ops.cuda, and fails to import it."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith("flyweight.ops.cuda"):
            raise self.error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module", name="triton"), "needs triton, which is not installed"),
        (
            OSError("libcudart.so.12: cannot open shared object file\nmore"),
            "needs torch and triton, which cannot be imported: libcudart.so.12: cannot open shared "
            "object file",
        ),
        (
            ImportError("libtorch.so: undefined symbol: f"),
            "needs torch and triton, which cannot be imported: libtorch.so: undefined symbol: f",
        ),
    ],
)
def test_what_cannot_be_imported(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("flyweight.ops.cuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Failing(error), *sys.meta_path])
    with pytest.raises(ConfigError) as refused:
        choose_backend(Settings(backend="cuda"), 1)
    assert str(refused.value) == (
        f"backend = 'cuda' {says}; pip install 'flyweight[cuda]', or backend = cpu"
    )


@pytest.mark.parametrize(
    ("device", "of"), [("cpu", "this process may use"), ("cuda", "share of the GPU's memory")]
)
def test_the_share_of_memory_is_of_the_device(device: str, of: str) -> None:
    notes = choose_engine({"device": device, "gpu_memory_utilization": 0.5}).notes
    (note,) = [n for n in notes if n.feature == "gpu_memory_utilization"]
    assert of in note.reason
