"""A small Hugging Face hub over HTTP: repositories are folders, with one revision `main`."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: The token that opens a gated repository.
TOKEN = "hf_let_me_in"


class Hub:
    """Its address, and the requests that it has had."""

    def __init__(self, repositories: Mapping[str, Path], gated: frozenset[str]) -> None:
        self.repositories = repositories
        self.gated = gated
        self.downloads: list[str] = []
        self.address = ""


def tree(folder: Path) -> list[dict[str, object]]:
    """The hub's list of a repository's files."""
    return [
        {
            "type": "file",
            "path": str(path.relative_to(folder)),
            "size": path.stat().st_size,
            "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = unquote(self.path.partition("?")[0]).strip("/")
        parts = path.removeprefix("api/models/").split("/")
        repo = "/".join(parts[:2])
        folder = self.hub.repositories.get(repo)
        if folder is None:
            return self.fail(401, "RepoNotFound")
        if repo in self.hub.gated and self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.fail(403, "GatedRepo")
        revision = parts[3] if len(parts) > 3 else "main"
        if revision not in {"main", COMMIT}:
            return self.fail(404, "RevisionNotFound")
        if path.startswith("api/models/"):
            listing = tree(folder) if parts[2] == "tree" else {"id": repo, "sha": COMMIT}
            return self.send(json.dumps(listing).encode(), body=body)
        file = folder.joinpath(*parts[4:])
        if not file.is_file():
            return self.fail(404, "EntryNotFound")
        if body:
            self.hub.downloads.append("/".join(parts[4:]))
        return self.send(file.read_bytes(), body=body)

    def send(self, content: bytes, *, body: bool) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.send_header("etag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("x-repo-commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.send_header("x-error-code", code)
        self.end_headers()


@contextmanager
def running_hub(
    repositories: Mapping[str, Path], gated: frozenset[str] = frozenset()
) -> Iterator[Hub]:
    """Serve the repositories on a free port of this machine."""
    hub = Hub(repositories, gated)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
