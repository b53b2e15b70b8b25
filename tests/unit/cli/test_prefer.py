"""`baton prefer` against a small HTTP server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cli.errors import CommandError
from cli.prefer import run_prefer

ANSWER = {"worker": "w", "role": "decode", "from_step": 4, "limits": ["it guesses no tokens"]}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, ANSWER, "w prefers decode, from step 4 on; it guesses no tokens"),
        (400, {"error": {"message": "w serves prefill alone"}}, "w serves prefill alone"),
        (403, {"error": {"message": "not for you"}}, "not for you"),
        (502, "?", "status 502"),
    ],
)
def test_the_order_and_the_answer_in_words(
    monkeypatch: pytest.MonkeyPatch, status: int, body: Any, words: str
) -> None:
    monkeypatch.setenv("BATON_API_KEY", "k")
    asked: list[Any] = []

    class Router(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, self.headers["authorization"], json.loads(content)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Router)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"
    if status == 200:
        assert run_prefer(url, "w", "decode") == words
    else:
        with pytest.raises(CommandError, match=words) as caught:
            run_prefer(url, "w", "decode")
        assert ("BATON_API_KEY" in caught.value.advice) is (status == 403)
    thread.join(5)
    server.server_close()
    order = {"worker": "w", "role": "decode"}
    assert asked == [("/v1/workers/prefer", "Bearer k", order)]
