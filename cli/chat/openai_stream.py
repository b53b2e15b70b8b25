"""Sends one question over the OpenAI API and streams the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DATA = "data: "
DONE = "[DONE]"


@dataclass(slots=True)
class Reply:
    """The data of the answer's last chunk."""

    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that came from a cache."""
        details = self.usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens", 0))


def stream_chat(
    url: str, question: str, reply: Reply, *, timeout_s: float = 120.0, **params: Any
) -> Iterator[str]:
    """Yield the answer's text by pieces; `reply` is set at the end.

    Raises:
        CommandError: the server refused, or the stream broke.
    """
    body = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **params,
    }
    path = f"{url}/v1/chat/completions"
    try:
        with (
            httpx.Client(timeout=timeout_s, trust_env=False) as client,
            client.stream("POST", path, json=body) as response,
        ):
            _require_ok(response)
            yield from _texts(response.iter_lines(), reply)
    except httpx.HTTPError as error:
        raise CommandError(f"{path} broke off: {str(error) or type(error).__name__}") from error


def _require_ok(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    raise CommandError(f"the server answered {response.status_code}: {_message(response.text)}")


def _texts(lines: Iterator[str], reply: Reply) -> Iterator[str]:
    for line in lines:
        if not line.startswith(DATA):
            continue
        data = line.removeprefix(DATA)
        if data == DONE:
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise CommandError(f"the answer broke off: {_message(data)}")
        reply.usage = chunk.get("usage") or reply.usage
        reply.timings = chunk.get("timings") or reply.timings
        for choice in chunk.get("choices", ()):
            yield choice.get("delta", {}).get("content") or ""
    raise CommandError("the answer broke off before its end")


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or "(no reason given)"
