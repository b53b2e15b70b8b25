"""The page's files, read once. They come from this router alone: nothing is loaded elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

FOLDER = Path(__file__).parent / "static"
PAGE_PATH = "/dashboard"
PAGE_FILE = "index.html"

#: Scripts, styles and connections are the router's own, and no script is written into the page, so
#: that a name or an answer that looks like markup stays text whatever the page does with it.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    path: str
    content: bytes
    headers: Mapping[str, str]

    async def serve(self, request: Request) -> Response:
        """Return the file, or 304 if the client has it already."""
        if request.headers.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=dict(self.headers))
        return Response(self.content, headers=dict(self.headers))


def read_assets(folder: Path = FOLDER) -> list[Asset]:
    """All files, each at the path under which the page asks for it."""
    return [_read(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()]


def _read(folder: Path, file: Path) -> Asset:
    name = file.relative_to(folder).as_posix()
    content = file.read_bytes()
    headers = {
        **SECURITY_HEADERS,
        "content-type": _TYPES[file.suffix],
        # A new version of the router must not meet old files of the page.
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
    path = PAGE_PATH if name == PAGE_FILE else f"{PAGE_PATH}/{name}"
    return Asset(path, content, headers)
