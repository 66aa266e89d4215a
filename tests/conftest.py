"""Fixtures for all folders."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from flyweight.engine.drafter_timer import DrafterTimer
from flyweight.eval.windows import DEFAULT_TEXT
from folder_seconds import FolderSeconds
from http_server import last_words

# A shell that starts the suite in the background has Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has ignored
# No test talks to the real Hub; those of ours to a stand-in set this and more for themselves.
os.environ["HF_HUB_OFFLINE"] = "1"
# Nor does one leave packed weights in somebody's home; those of ours that keep some say where.
os.environ["FLYWEIGHT_CACHE_SIZE"] = "1B"
# Hundreds of processes import the package: without bytecode each would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# OpenBLAS' threads spin while they wait for work: with several workers that is half of the
# processor time of tests that multiply in NumPy.  Read when NumPy is imported, so set before.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Machines that run tests are busy, so none fails for the time it takes.
settings.register_profile("patient", deadline=None, max_examples=25)
settings.register_profile("at length", deadline=None, max_examples=300)

SLOW_FOLDERS = {name: i for i, name in enumerate(("ops", "model", "server", "api", "bench"))}


def pytest_configure(config: pytest.Config) -> None:
    """A cache folder of this process: with `-n` each worker finds and ends its own servers."""
    config.pluginmanager.register(FolderSeconds(), "folder-seconds")
    settings.load_profile("at length" if config.getoption("--long") else "patient")
    cache = tempfile.TemporaryDirectory(prefix="flyweight-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(cache.cleanup)
    os.environ["FLYWEIGHT_CACHE"] = cache.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="also the tests marked `long`, and larger counts in those marked `longer` (.ci/full)",
    )
    parser.addoption(
        "--models-table", action="store_true", help="write the table of docs/models.md"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests whose counts grow with --long, and leaves out those that run only with it.

    Folders whose files take longest come first, so that `make test` ends with short ones: workers
    take whole files, and one that begins a long file last keeps the others waiting.
    """
    items.sort(key=lambda item: SLOW_FOLDERS.get(item.path.parent.name, len(SLOW_FOLDERS)))
    for item in items:
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if drawn or "at_length" in getattr(item, "fixturenames", ()):
            item.add_marker("longer")
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session", autouse=True)
def never_stalled() -> Iterator[None]:
    """A busy machine keeps every call waiting: a drafter stalls by clocks of tests alone."""
    judge = DrafterTimer.judge
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            DrafterTimer,
            "judge",
            lambda timer, began: "" if timer.clock is time.perf_counter else judge(timer, began),
        )
        yield


@pytest.fixture(scope="session")
def at_length(pytestconfig: pytest.Config) -> bool:
    """Whether counts are those of .ci/full; a test that asks for this is marked `longer`."""
    return bool(pytestconfig.getoption("--long"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its servers said last: one that died says so nowhere else."""
    report = yield
    if report.failed and call.excinfo is not None:
        values = list(getattr(item, "funcargs", {}).values())
        for entry in call.excinfo.traceback:
            values += entry.frame.f_locals.values()
        report.sections += last_words(values)
    return report


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """`data("stories260k/x.gguf")`: a file of the larger corpora, under FLYWEIGHT_DATA.

    Skips the test when that is unset; fails it when the folder is there but the file is not.
    """
    root = os.environ.get("FLYWEIGHT_DATA")

    def path(name: str) -> Path:
        if not root:
            pytest.skip("needs FLYWEIGHT_DATA")
        found = Path(root) / name
        assert found.exists(), f"FLYWEIGHT_DATA has no {name}"
        return found

    return path


@pytest.fixture(scope="session")
def short_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which WikiText-2 is its beginning: an evaluation of a few hundred tokens
    would tokenize all 1.3 MB of it, for each model.
    """
    usual = Path(os.environ.get("FLYWEIGHT_DATA", "")) / DEFAULT_TEXT
    if "FLYWEIGHT_DATA" not in os.environ or not usual.exists():
        return {}
    folder = tmp_path_factory.mktemp("data")
    file = folder / DEFAULT_TEXT
    file.parent.mkdir()
    file.write_text(usual.read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    return {"FLYWEIGHT_DATA": str(folder)}


@pytest.fixture
def short_text(short_data: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in short_data.items():
        monkeypatch.setenv(name, value)
