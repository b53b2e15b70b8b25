"""One request that both servers get, and how it is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.side_by_side.answer import Answer, read

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, by what it is about: a field of an endpoint, or the endpoint alone."""

    method: str = "POST"
    path: str
    #: A field of the body, or what else is special.
    field: str
    #: Which of the field's values.
    kind: str
    body: Any = None
    #: Sent as it is instead of `body`.
    raw: bytes | None = None
    content_type: str | None = JSON

    @property
    def key(self) -> str:
        """Unique, and what rules match."""
        return f"{self.method} {self.path} {self.field} {self.kind}"


async def send(http: httpx.AsyncClient, ask: Ask) -> Answer:
    """Ask, and read the answer to its end."""
    content = ask.raw
    if content is None and ask.method == "POST" and ask.body is not None:
        content = json.dumps(ask.body).encode()
    headers = {}
    if content is not None and ask.content_type is not None:
        headers["content-type"] = ask.content_type
    try:
        response = await http.request(ask.method, ask.path, content=content, headers=headers)
    except httpx.TransportError:
        # vLLM closes a connection that was idle while it had other things to do.
        response = await http.request(ask.method, ask.path, content=content, headers=headers)
    return read(response.status_code, response.headers.get("content-type", ""), response.text)
