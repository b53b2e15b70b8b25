"""Asks one service whether it serves: a container's health check.

With TLS it shows the service's own certificate, which is found as by the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.error import HTTPError

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.errors import CommandError
from cli.security.access import open_channel, open_http
from shared.address import join_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.security.access import Secure

TIMEOUT_S = 3.0


def probe_router(host: str, port: int, secure: Secure | None = None) -> str:
    """Return the router's answer; see `GET /ready`.

    Raises:
        CommandError: it is not up, or does not serve.
    """
    url = f"{'http' if secure is None else 'https'}://{join_address(host, port)}/ready"
    try:
        with open_http(secure).open(url, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        with error:
            raise CommandError(f"{url}: {error.read().decode(errors='replace')}") from error
    except OSError as error:
        raise CommandError(f"{url}: {error}") from error


def probe_worker(host: str, port: int, secure: Secure | None = None) -> str:
    """Return the answer of the worker's gRPC health service.

    Raises:
        CommandError: it is not up, or does not serve.
    """
    target = join_address(host, port)
    with open_channel(target, secure) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise CommandError(f"{target}: {error.code().name}: {error.details()}") from error
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise CommandError(f"{target}: {status}")
    return str(status)


#: By the name on the command line.
PROBES: dict[str, Callable[[str, int, Secure | None], str]] = {
    "router": probe_router,
    "worker": probe_worker,
}
