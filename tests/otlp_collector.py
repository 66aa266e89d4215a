"""An OpenTelemetry collector on this machine, for tests of traces: it takes OTLP over HTTP."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from http_server import WAIT

STAGES = ["tokenize", "queue", "prefill", "decode", "detokenize"]
ALL = ["llm_request", *STAGES]


class Inbox:
    """A collector on this machine: what was sent to it, and the spans within."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        self.paths: set[str] = set()
        self.raw = b""
        self.spans: list[Any] = []
        inbox = self

        class Post(BaseHTTPRequestHandler):
            """Takes OTLP."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found = ExportTraceServiceRequest.FromString(body)
                spans = [s for r in found.resource_spans for c in r.scope_spans for s in c.spans]
                inbox.paths.add(self.path)
                inbox.raw += body
                inbox.spans += spans
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *words: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Post)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def trace(self, number: int, count: int) -> list[Any]:
        """The spans of a trace, once there are so many: in the order of its stages."""
        until = time.monotonic() + WAIT
        while True:
            own = [s for s in self.spans if int.from_bytes(s.trace_id, "big") == number]
            if len(own) >= count:
                return sorted(own, key=lambda s: ALL.index(s.name))
            assert time.monotonic() < until, [s.name for s in own]
            time.sleep(0.02)
