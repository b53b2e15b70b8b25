"""What a starting cluster still lacks, as its router says it."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cli.start.readiness import ReadinessProbe

NOTE = "no prefill worker is ready"


@pytest.mark.parametrize(
    ("status", "body", "needs_prefill", "missing"),
    [
        (200, {"reasons": [], "notes": [NOTE]}, True, (NOTE,)),
        (200, {"reasons": [], "notes": [NOTE]}, False, ()),
        (200, {"reasons": [], "notes": []}, True, ()),
        (503, {"reasons": ["no decode worker is ready"]}, True, ("no decode worker is ready",)),
        (503, ["not", "an", "answer"], False, ("the router is not ready",)),
    ],
)
def test_a_cluster_with_prefill_workers_waits_until_one_gets_prompts(
    status: int, body: object, needs_prefill: bool, missing: tuple[str, ...]
) -> None:
    class Router(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/ready"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Router)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    with closing(ReadinessProbe(url=url, directory="127.0.0.1:1")) as probe:
        assert probe.missing(is_meant=lambda _: not needs_prefill) == missing
    thread.join(5)
    server.server_close()
