"""Installs the package of this checkout, or an extra's requirements, and prints a line per step.

    .venv/bin/python tools/install.py           builds the wheel into .venv/wheel and installs it
    .venv/bin/python tools/install.py dev       installs what the extra `dev` lists, nothing else

Used by the Makefile.  The kernels take minutes to compile, so every compiled file is a line; the
output of pip and the compiler is shown only where they fail.  Extras are read from pyproject.toml:
pip would build the package again for `.[dev]`.  It knows nothing of what it compiles.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Processor time that compiling everything takes on a server's core of 2023.
COMPILING_SECONDS = 120
# A line of Ninja's: the target is in the folder's name, `fw_avx512.dir`, and a file of several
# sources is named after their group, `unity_rows_cxx.cxx`.
COMPILED = re.compile(
    r"^\s*\[(\d+)/(\d+)\] Building CXX object .*?([\w-]+)\.dir/.*?"
    r"(?:unity_)?(\w+?)(?:_cxx\.cxx|\.cpp)"
)
LINES_OF_AN_ERROR = 60


def progress(line: str) -> str | None:
    """What is shown of one line of the build's output; None: nothing."""
    found = COMPILED.match(line)
    if found is None:
        return None
    done, of, target, name = found.groups()
    target = target.removeprefix("fw_").lstrip("_")
    what = target if name.isdigit() else f"{name} ({target})"  # groups without a name are numbered
    return f"  [{done:>{len(of)}}/{of}] {what}"


def run(command: Sequence[str]) -> None:
    """Runs `command`, shows its progress lines, and all of its end where it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if (shown := progress(line)) is not None:
                print(shown, flush=True)
    if process.returncode:
        sys.stderr.write("".join(lines[-LINES_OF_AN_ERROR:]))
        raise SystemExit(f"failed with status {process.returncode}: {' '.join(command)}")


def pip(*arguments: str) -> None:
    run([sys.executable, "-m", "pip", *arguments])


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def install_package() -> None:
    folder = Path(sys.prefix) / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    minutes = max(1, round(COMPILING_SECONDS / cores() / 60))
    print(
        f"compiling the CPU kernels: about {minutes} minute{'s' if minutes > 1 else ''} "
        f"on {cores()} cores",
        flush=True,
    )
    pip("wheel", "-v", "--no-deps", "--wheel-dir", str(folder), ".")
    (wheel,) = folder.glob("*.whl")
    print(f"installing {wheel.name} and its dependencies", flush=True)
    # The version is the same after a change of the sources: without the flag pip keeps the old one.
    pip("install", "--no-deps", "--force-reinstall", str(wheel))
    pip("install", str(wheel))


def install_extra(name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    print(f"installing the {len(extras[name])} packages of the extra {name!r}", flush=True)
    pip("install", *extras[name])


if __name__ == "__main__":
    if sys.argv[1:]:
        for extra in sys.argv[1:]:
            install_extra(extra)
    else:
        install_package()
