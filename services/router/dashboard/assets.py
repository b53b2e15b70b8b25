"""The page's files, read once. The page loads nothing from other servers."""

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

#: Scripts, styles and connections come from the router alone, and no inline script is allowed. So a
#: name or an answer that looks like markup stays text.
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
    """One file of the page."""

    path: str
    content: bytes
    headers: Mapping[str, str]

    async def serve(self, request: Request) -> Response:
        """Return the file, or 304 if the client has it already."""
        if request.headers.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=dict(self.headers))
        return Response(self.content, headers=dict(self.headers))


def read_assets(folder: Path = FOLDER) -> list[Asset]:
    """Return all files, each with the path under which the page requests it."""
    return [_read(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()]


def _read(folder: Path, file: Path) -> Asset:
    name = file.relative_to(folder).as_posix()
    content = file.read_bytes()
    headers = {
        **SECURITY_HEADERS,
        "content-type": _TYPES[file.suffix],
        # After an update the router must not be used with old files of the page.
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
    path = PAGE_PATH if name == PAGE_FILE else f"{PAGE_PATH}/{name}"
    return Asset(path, content, headers)
