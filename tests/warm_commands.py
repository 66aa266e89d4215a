"""A process that runs one command line after the other: imports are paid for once.

The environment is that of its start: what reads variables when it is imported keeps them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace

Commands = Callable[..., SimpleNamespace]
WARM = """
import contextlib, io, json, sys
from flyweight.cli.main import main
lines, answers, sys.stdin = sys.stdin, sys.stdout, None
for line in lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=answers, flush=True)
"""


@contextmanager
def warmed(environment: Mapping[str, str]) -> Iterator[Commands]:
    """`call("pull", ...)` -> code, out, err."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", WARM]
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=dict(environment), text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        def call(*words: object) -> SimpleNamespace:
            print(json.dumps(list(map(str, words))), file=stdin, flush=True)
            code, out, err = json.loads(stdout.readline())
            return SimpleNamespace(code=code, out=out, err=err)

        yield call
        stdin.close()
