"""Reading a streamed answer of the OpenAI API."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from cli.chat.openai_stream import Reply, stream_chat
from cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def events(*chunks: Any) -> str:
    return "".join(
        f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks
    )


def text(content: str | None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}}]}


@pytest.fixture
def serve() -> Iterator[Callable[[int, str], str]]:
    """Answers one request with a status and a body; returns the URL."""
    servers: list[HTTPServer] = []

    def start(status: int, body: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, args=(0.01,)).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_text_usage_and_timings(serve: Callable[[int, str], str]) -> None:
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
        "timings": {"total_ms": 4.0},
    }
    url = serve(200, events(text("a"), text(None), text("b"), last, "[DONE]"))
    reply = Reply()
    assert "".join(stream_chat(url, "?", reply)) == "ab"
    assert reply.cached_tokens == 2
    assert reply.timings["total_ms"] == 4.0


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (429, '{"error": {"message": "too busy"}}', "429: too busy"),
        (500, "oops", "500: oops"),
        (200, events(text("a")), "broke off before its end"),
        (200, events(text("a"), {"error": {"message": "worker lost"}}), "worker lost"),
    ],
)
def test_what_went_wrong_is_said(
    serve: Callable[[int, str], str], status: int, body: str, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        list(stream_chat(serve(status, body), "?", Reply()))


def test_nobody_there() -> None:
    with pytest.raises(CommandError, match="broke off"):
        list(stream_chat("http://127.0.0.1:1", "?", Reply()))
