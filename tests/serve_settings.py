"""Serves with settings given as JSON: what the tests of limits start, as not all are options."""

import json
import sys
from pathlib import Path

from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.server.api_server import ApiServer
from flyweight.server.lifecycle.start import serve
from flyweight.server.model_options import ModelOptions
from flyweight.server.observability.effective_config import SettingRequests
from flyweight.server.settings import ServerSettings


class Quiet:
    """A listener of the address."""

    def ready(self, server: ApiServer, port: int) -> None:
        print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)

    def found(self, path: Path) -> None: ...
    def __getattr__(self, name: str) -> object:
        return lambda *reported: None


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    server = {k: tuple(v) if isinstance(v, list) else v for k, v in given["server"].items()}
    try:
        settings = Settings.of(**given["settings"])
        models = [ModelOptions(settings)]
        sys.exit(serve(models, ServerSettings.of(server), Quiet(), SettingRequests()))
    except ConfigError as error:
        sys.exit(f"error: {error}")
