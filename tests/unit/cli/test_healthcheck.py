"""The images' health check says what the service says, at the cost of a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from cli import healthcheck

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWERS = {"/ready": 200, "/health": 200}


class Service(BaseHTTPRequestHandler):
    """Answers as `ANSWERS` says."""

    def do_GET(self) -> None:
        self.send_response(ANSWERS.get(self.path, 404))
        self.end_headers()
        self.wfile.write(b"as it is")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def check(kind: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """As the images run it."""
    command = [sys.executable, "-I", "-S", healthcheck.__file__, kind]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("kind", "setting", "path"),
    [("router", "BATON_PORT", "/ready"), ("worker", "BATON_METRICS_PORT", "/health")],
)
def test_it_says_what_the_service_says(
    port: int, monkeypatch: pytest.MonkeyPatch, kind: str, setting: str, path: str
) -> None:
    environ = {setting: str(port)}
    found = check(kind, **environ)
    assert (found.returncode, found.stdout) == (0, "as it is\n")
    monkeypatch.setitem(ANSWERS, path, 503)
    found = check(kind, **environ)
    assert (found.returncode, found.stdout) == (1, "as it is\n")


def test_nobody_there_is_not_well(port: int) -> None:
    free = port + 1 if port < 65535 else port - 1
    found = check("router", BATON_PORT=str(free))
    assert found.returncode == 1
    assert "refused" in found.stdout


@pytest.mark.parametrize(
    ("kind", "environ"), [("router", {"BATON_TLS_CERT": "/certs/router.crt"}), ("worker", {})]
)
def test_what_plain_http_cannot_tell_is_left_to_the_command(
    monkeypatch: pytest.MonkeyPatch, kind: str, environ: dict[str, str]
) -> None:
    for name in ("BATON_TLS_CERT", "BATON_METRICS_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert healthcheck.find_target(kind) is None
