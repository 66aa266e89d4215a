"""What a server is started with: settings, and who is shown how the start goes.

Invariant: what shows a start may refuse a model by raising, and changes nothing else.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flyweight.arguments.wishes import SettingRequests
from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.server import pipe
from flyweight.server.api_server import ApiServer
from flyweight.server.observability.logfile import LogFile
from flyweight.server.settings import ServerSettings


class ShowsLoading(LoadListener, Protocol):
    """What shows a server's start.  `found` may refuse a model by raising."""

    def found(self, path: Path) -> None: ...
    def told(self, message: pipe.LoadingProgress) -> None: ...
    def ready(self, server: ApiServer, port: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerState:
    """`wishes` are the settings that the user gave, for the effective configuration; the log goes
    to stderr where there is no `log`.
    """

    settings: Settings
    server: ServerSettings
    show: ShowsLoading
    wishes: SettingRequests
    log: LogFile | None = None
