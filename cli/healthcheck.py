"""A container's health check: `baton probe` without its imports, since it runs every few seconds.

`python -I -S healthcheck.py router|worker`, with the service's own settings in the environment. If
there is no plain HTTP, as on a router with TLS or a worker without a metrics port, `baton probe`
runs instead.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

TIMEOUT_S = 10.0
#: Bytes read: the status line and the reasons after it.
MAX_BYTES = 4096
DEFAULT_ROUTER_PORT = 8000


def find_target(kind: str) -> tuple[int, str] | None:
    """Return port and path of the plain HTTP health check; None if there is none."""
    if kind == "router":
        is_plain = "BATON_TLS_CERT" not in os.environ
        port = int(os.environ.get("BATON_PORT", DEFAULT_ROUTER_PORT))
        return (port, "/ready") if is_plain else None
    metrics_port = os.environ.get("BATON_METRICS_PORT")
    return (int(metrics_port), "/health") if metrics_port else None


def ask(port: int, path: str) -> str:
    """Return the HTTP answer as text.

    Raises:
        OSError: the service cannot be reached.
    """
    answer = b""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        while len(answer) < MAX_BYTES and (data := connection.recv(MAX_BYTES)):
            answer += data
    return answer.decode(errors="replace")


def main() -> int:
    """Return 0 if the service serves."""
    kind = sys.argv[1]
    target = find_target(kind)
    if target is None:
        command = str(Path(__file__).resolve().parent.parent / "baton")
        os.execv(command, [command, "probe", kind])
    try:
        status, _, body = ask(*target).partition("\r\n\r\n")
    except OSError as error:
        status, body = "", str(error)
    serves = status.partition("\r\n")[0].split(" ")[1:2] == ["200"]
    sys.stdout.write(f"{body.strip()}\n")
    return 0 if serves else 1


if __name__ == "__main__":
    sys.exit(main())
