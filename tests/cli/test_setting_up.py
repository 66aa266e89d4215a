"""Setting up: what the Makefile says where something is missing; hooks test the sources."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The tests may run under a `make test` with settings of its own.
OUTSIDE = {
    name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"
}


@pytest.fixture
def make(tmp_path):
    """`make(python, path)`: the line `make` stops with before it makes a venv."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "native").mkdir()
    (tmp_path / "src").mkdir()

    def call(python: str, path: str) -> str:
        done = subprocess.run(
            [shutil.which("make"), ".venv/bin/python", f"PYTHON={python}"],
            cwd=tmp_path,
            env={**OUTSIDE, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2 and not (tmp_path / ".venv").exists()
        (line,) = done.stdout.splitlines()
        return line

    return call


def test_missing_headers_are_named(make, tmp_path) -> None:
    fake = tmp_path / "python"
    bare = "import sysconfig; sysconfig.get_path = lambda name: '/nowhere'"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" "{bare}; $2"\n')
    fake.chmod(0o755)
    assert make(str(fake), os.environ["PATH"]).endswith("apt install python3-dev")


def test_a_missing_compiler_is_named(make, tmp_path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "find").symlink_to(shutil.which("find"))
    fake = tools / "python"  # has everything, so that only the compiler is missing
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    assert make(str(fake), str(tools)).endswith("apt install g++")


def test_hooks_check_the_sources() -> None:
    """Not the copy that is installed in .venv."""
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^ *entry: (.+)$", text, re.M)
    reading = [entry for entry in entries if not entry.startswith("ruff ")]
    assert len(reading) == 3 and all(e.startswith("env PYTHONPATH=src ") for e in reading)


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# Run by .ci/full and by hand with torch, transformers or llama.cpp, never by pytest: make_*.py and
# these.
WITH_PEERS = {
    "fixture_models", "tasks_by_lm_eval", "families", "tiny_llama", "read_by_libraries",
    "read_by_llama_cpp",
    "test_device_comm", "test_head_training",  # run by `make test-cuda`
    # run by the step `distributed`
    "batch_texts", "test_batch_beam", "test_batch_parquet", "test_batch_replicas",
    "test_deployed_ray", "test_ray_access", "test_ray_calls", "test_ray_data",
}  # fmt: skip
OURS = {p.stem for room in ("tests", "tools") for p in (ROOT / room).rglob("*.py")}
OURS |= {"flyweight", "host_loss", "soak_parts"}


def distributions(path: Path, found: Mapping[str, list[str]]) -> set[str]:
    """What a test file imports that is neither standard nor ours; `found`: packages by module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    outside = {n for n in names - OURS if n not in sys.stdlib_module_names}
    return {re.sub(r"[-_.]+", "-", found.get(name, [name])[0]).lower() for name in outside}


def test_dev_brings_what_the_suite_imports() -> None:
    listed = EXTRAS["dependencies"] + EXTRAS["optional-dependencies"]["dev"]
    brought = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~; \[]", line)[0]).lower() for line in listed}
    found = packages_distributions()
    wanted = {
        name: path.name
        for path in (ROOT / "tests").rglob("*.py")
        if path.stem not in WITH_PEERS
        and not path.stem.startswith("make_")
        and path.parent.name not in ("clients", "cuda")  # each runs in an environment of its own
        for name in distributions(path, found)
    }
    assert "gguf" in wanted
    assert {name: file for name, file in wanted.items() if name not in brought} == {}


def ci_function(name: str) -> str:
    """The body of a shell function of .ci/run."""
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    (body,) = re.findall(rf"^{name}\(\) \{{( [^\n]*\}}$|\n.*?^\}}$)", text, re.M | re.S)
    return body.rstrip("}")


def test_ci_runs_the_two_commands_as_the_readme_has_them() -> None:
    """In a clone, with an empty HOME, and nothing is installed for them but by them."""
    assert ci_function("demo").strip(" ;") == "fresh make demo"
    (command,) = [line for line in ci_function("suite").splitlines() if "make" in line]
    assert command.strip() == 'fresh make test 2>&1 | tee "$work/suite.txt"'
    for name in ("demo", "suite", "targets", "types", "fresh"):
        body = re.sub(r"PIP_|\.installed", "", ci_function(name))
        assert not re.search(r"\b(pip|install|apt|apt-get|uv)\b", body)
    fresh = ci_function("fresh")
    assert "git clone" in fresh and 'env -i HOME="$work/home"' in fresh
    for script in ("run", "full"):
        text = (ROOT / ".ci" / script).read_text("utf-8")
        assert not re.search(r"\.venv/bin/(pip|python -m (pip|ensurepip))", text)


def test_ci_full_runs_the_long_tests_by_their_markers() -> None:
    text = (ROOT / ".ci" / "full").read_text("utf-8")
    assert '.venv/bin/python -m pytest -n 4 --dist loadfile --long -m "long or longer"\n' in text


def test_the_build_prints_a_line_per_compiled_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import install

    line = "[7/61] Building CXX object CMakeFiles/fw_avx512.dir/native/gemm_grouped.cpp.o\n"
    assert install.progress(line) == "  [ 7/61] gemm_grouped (avx512)"
    group = line.replace("native/gemm_grouped.cpp", "Unity/unity_rows_cxx.cxx")
    assert install.progress(group) == "  [ 7/61] rows (avx512)"
    numbered = "[7/61] Building CXX object CMakeFiles/_native.dir/Unity/unity_1_cxx.cxx.o\n"
    assert install.progress(numbered) == "  [ 7/61] native"
    assert install.progress("-- Detecting CXX compiler ABI info - done\n") is None


def test_a_failed_step_shows_the_end_of_its_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import install

    program = "import sys; print('the reason', file=sys.stderr); sys.exit(3)"
    with pytest.raises(SystemExit, match="failed with status 3"):
        install.run([sys.executable, "-c", program])
    assert capfd.readouterr().err == "the reason\n"


def test_the_makefile_uses_no_undefined_variable() -> None:
    """`make` expands one to nothing: `pip install '$(PACKAGE)[bench]'` installed "[bench]"."""
    command = ["make", "-n", "--warn-undefined-variables", "demo", "test", "bench", "native"]
    out = subprocess.run(command, cwd=ROOT, env=OUTSIDE, capture_output=True, text=True, check=True)
    assert "undefined variable" not in out.stderr
