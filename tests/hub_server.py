"""A stand-in for the Hugging Face Hub on this machine: what the client asks for, and what can go
wrong on the way.  Made from the client's documentation; the client itself runs unpatched against
it, by HF_ENDPOINT.

Files that the Hub keeps in LFS are redirected to another host (localhost next to 127.0.0.1), as to
the Hub's CDN.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LFS = (".safetensors", ".gguf", ".bin", ".onnx")


@dataclass
class Repo:
    """`files` of the revisions in `refs`; `refused` is a status for every request of it."""

    files: Mapping[str, bytes]
    refs: tuple[str, ...] = ("main",)
    refused: int = 0
    code: str = ""
    gguf: dict[str, object] | None = None

    @property
    def commit(self) -> str:
        names = [f"{name} {digest(raw)}" for name, raw in self.files.items()]
        return hashlib.sha1("\n".join(names).encode()).hexdigest()


@dataclass
class Asked:
    method: str
    path: str
    range: str
    token: str
    sent: int = 0


@dataclass
class Hub:
    """`faults` maps the end of a path to what the next requests of it meet: a status, `cut N` (the
    connection ends after N bytes), `stay N` (it goes silent after them), `whole` (no ranges).
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    requested: list[Asked] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    port: int = 0
    retry_after: str = "1"
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def forget(self) -> None:
        """Begins anew, at the same address."""
        self.ended.set()
        self.repos, self.faults, self.requested, self.blobs = {}, {}, [], {}
        self.retry_after, self.ended = "1", threading.Event()

    def bodies(self) -> list[str]:
        """Names of the files whose content was requested."""
        return [a.path.rsplit("/", 1)[-1] for a in self.requested if a.method == "GET" and a.sent]

    def fault(self, path: str) -> str:
        for end, faults in self.faults.items():
            if path.endswith(end) and faults:
                return faults.pop(0)
        return ""


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The stand-in, until the block ends."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None: ...

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            get = self.headers.get
            requested = Asked(self.command, path, get("Range", ""), get("Authorization", ""))
            hub.requested.append(requested)
            fault = hub.fault(path)
            if fault.isdecimal():
                more = {"Retry-After": hub.retry_after} if fault == "429" else {}
                return self.reply(int(fault), more)
            parts = path.strip("/").split("/")
            if parts[0] == "cdn":
                return self.content(hub.blobs[parts[1]], requested, fault, {})
            if parts[0] == "api":
                return self.listing("/".join(parts[2:4]), "/".join(parts[5:]) or "main")
            return self.resolve("/".join(parts[:2]), "/".join(parts[3:]), requested, fault)

        def listing(self, name: str, revision: str) -> None:
            repo = hub.repos.get(name)
            if repo is None or (repo.refused and not repo.code):
                return self.reply(repo.refused if repo else 404, {"X-Error-Code": "RepoNotFound"})
            if revision not in (*repo.refs, repo.commit):
                return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
            siblings = [self.sibling(file, raw) for file, raw in repo.files.items()]
            found = {"id": name, "sha": repo.commit, "siblings": siblings, "gguf": repo.gguf}
            return self.reply(200, {"Content-Type": "application/json"}, json.dumps(found).encode())

        def sibling(self, file: str, raw: bytes) -> dict[str, object]:
            lfs = {"sha256": digest(raw), "size": len(raw), "pointerSize": 134}
            more = {"lfs": lfs} if file.endswith(LFS) else {}
            return {"rfilename": file, "size": len(raw), "blobId": digest(raw)[:40], **more}

        def resolve(self, name: str, rest: str, requested: Asked, fault: str) -> None:
            repo = hub.repos[name]
            revision, _, file = rest.partition("/")
            assert revision == repo.commit, "files are requested by commit"
            if repo.refused:
                return self.reply(repo.refused, {"X-Error-Code": repo.code})
            raw = repo.files[file]
            about = {"X-Repo-Commit": repo.commit, "ETag": f'"{digest(raw)[:40]}"'}
            if not file.endswith(LFS):
                return self.content(raw, requested, fault, about)
            hub.blobs[digest(raw)] = raw
            about |= {
                "X-Linked-Etag": f'"{digest(raw)}"',
                "X-Linked-Size": str(len(raw)),
                "X-Xet-Hash": digest(raw),
                "Link": f"<{hub.endpoint}/xet>; rel=xet-auth",
                "Location": f"http://localhost:{hub.port}/cdn/{digest(raw)}/{file}",
            }
            return self.reply(302, about)

        def content(self, raw: bytes, requested: Asked, fault: str, about: dict[str, str]) -> None:
            first, last, status, ended = 0, len(raw) - 1, 200, hub.ended
            if requested.range and fault != "whole":
                begin, _, end = requested.range.removeprefix("bytes=").partition("-")
                first, last, status = int(begin), min(int(end or last), last), 206
                about["Content-Range"] = f"bytes {first}-{last}/{len(raw)}"
            body = raw[first : last + 1]
            kind, _, count = fault.partition(" ")
            if kind == "damage":
                body = bytes(len(body))
            self.send_response(status)
            for key, value in {**about, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            part = body[: int(count)] if kind in ("cut", "stay") else body
            requested.sent = len(part)
            try:
                self.wfile.write(part)
            except OSError:  # the client is gone
                self.close_connection = True
            if kind == "stay":
                self.wfile.flush()
                ended.wait(60)
            if kind in ("cut", "stay"):
                self.close_connection = True

        def reply(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
