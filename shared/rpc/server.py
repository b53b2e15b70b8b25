"""A gRPC server with health, reflection, error mapping and the options that long streams need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shared.errors import ConfigError
from shared.rpc.interceptors import ErrorInterceptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.rpc.auth import AuthInterceptor
    from shared.rpc.tls.server import ServerTls

#: Prompts of a million tokens fit; longer messages are refused before they are decoded.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_STREAMS = 4096

_OPTIONS = [
    # Connections without a handshake are closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # The loss of a peer that did not close its connection is noticed within 10 seconds.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients may ping as often as our own channels do (see channel.py).
    ("grpc.http2.min_ping_interval_without_data_ms", 2_500),
    ("grpc.http2.max_ping_strikes", 0),
]


class RpcServer:
    """One listening gRPC server.

    Servicers are added with their generated `add_…_to_server` function on `server`; `start` binds
    the address and reports every added service.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        *,
        share_port: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_streams: int = MAX_STREAMS,
        guard: AuthInterceptor | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Make a server.

        `max_streams` of one connection run at a time; a client's library queues the others.
        `share_port`: other processes may listen on the same port, and the system distributes
        connections among them. Otherwise a port that is in use is an error. Without a `guard` every
        caller that `tls` accepts may call everything.
        """
        options = [
            *_OPTIONS,
            ("grpc.so_reuseport", int(share_port)),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_concurrent_streams", max_streams),
        ]
        self._tls = tls
        interceptors: list[grpc.aio.ServerInterceptor] = [] if guard is None else [guard]
        interceptors.append(ErrorInterceptor())
        if tls is not None:
            interceptors.append(tls.guard())
        self.server = grpc.aio.server(interceptors=interceptors, options=options)
        self._service_names = tuple(service_names)
        self._health = health.aio.HealthServicer()
        self.port = 0

    async def start(self, address: str, *more: str, serving: bool = True) -> None:
        """Bind every address (host:port; port 0: a free one) and serve; `port` is the first's.

        Health checks report `serving` for every service, until `set_serving` changes that.

        Raises:
            ConfigError: the address cannot be bound.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(
            (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.server
        )
        self.port = self._bind(address, first=True)
        for each in more:
            self._bind(each, first=False)
        await self.set_serving(serving=serving)
        await self.server.start()

    def _bind(self, address: str, *, first: bool) -> int:
        try:
            if self._tls is None:
                return self.server.add_insecure_port(address)
            return self.server.add_secure_port(address, self._tls.credentials(first=first))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {address}: is another process using the port? ({error})"
            ) from error

    async def set_serving(self, *services: str, serving: bool) -> None:
        """Set the health status of services, "" for the server; without names of all."""
        status = health_pb2.HealthCheckResponse.SERVING
        if not serving:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in services or ("", *self._service_names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s`, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_s)
