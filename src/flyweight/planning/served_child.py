"""A server for `local_server`: its first argument holds settings as JSON, stdout gets its port.

    python -m flyweight.planning.served_child '{"model": "stories"}'

Invariant: the server is the one of `flyweight serve` with its own defaults, on any free port of the
loopback.  It ends when its stdin does.
"""

import json
import os
import signal
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from flyweight.arguments.draft import SettingRequests
from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import FlyweightError
from flyweight.server.lifecycle.start import serve
from flyweight.server.model_options import ModelOptions
from flyweight.server.settings import ServerSettings

if TYPE_CHECKING:  # heavy modules are imported while the engine starts
    from flyweight.server import pipe
    from flyweight.server.api_server import ApiServer


class PortPrinter(SilentListener):
    """Prints the port once the server takes requests."""

    def found(self, path: Path) -> None: ...
    def show_progress(self, message: "pipe.LoadingProgress") -> None: ...
    def ready(self, server: "ApiServer", port: int) -> None:
        print(port, flush=True)


def end_with_stdin() -> None:
    while os.read(0, 1):  # a reader of Python's own could not be left at the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """The exit code; a refusal is the last line on stderr."""
    Thread(target=end_with_stdin, daemon=True).start()
    try:
        settings = Settings(**json.loads(sys.argv[1]))
        models = [ModelOptions(settings)]
        return serve(models, ServerSettings(port=0), PortPrinter(), SettingRequests())
    except FlyweightError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
