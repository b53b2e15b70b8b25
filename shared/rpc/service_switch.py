"""The part of a server's services that changes while the server runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import grpc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.rpc.server import RpcServer


class ServiceSwitch(grpc.GenericRpcHandler):
    """A handler of a server whose services can be replaced. Without any it knows no method.

    Running calls keep the handler that they began with.
    """

    def __init__(self) -> None:
        self._handlers: tuple[grpc.GenericRpcHandler, ...] = ()

    def put(self, services: ServiceSet) -> None:
        """Replace all services."""
        self._handlers = tuple(services.handlers)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; None: no present service has the method."""
        for handler in self._handlers:
            found = handler.service(handler_call_details)
            if found is not None:
                return found
        return None


class ServiceSet:
    """Services for a `ServiceSwitch`.

    Servicers are added with their generated `add_…_to_server` function on `server`.
    """

    def __init__(self, rpc: RpcServer) -> None:
        """Start without services, for a switch of `rpc`."""
        self._rpc = rpc
        self.handlers: list[grpc.GenericRpcHandler] = []

    @property
    def port(self) -> int:
        """Port of the server; 0 before it listens."""
        return self._rpc.port

    @property
    def server(self) -> grpc.aio.Server:
        """What the generated functions add to: this set, of which they use two methods."""
        return cast("grpc.aio.Server", self)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See `grpc.aio.Server`."""
        self.handlers += handlers

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, Any]
    ) -> None:
        """Do nothing: the generic handler has the same methods."""
