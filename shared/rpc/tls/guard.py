"""Access to services by the role in the caller's certificate."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from shared.errors import AuthenticationError
from shared.rpc.interceptors import wrapped_handler
from shared.rpc.tls.identity import PeerRole, identities

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

#: The key of a certificate's alternative names in gRPC's authentication context.
_NAMES_KEY = "x509_subject_alternative_name"
_Context = grpc.aio.ServicerContext[Any, Any]

WORKERS = frozenset({PeerRole.PREFILL, PeerRole.DECODE})
CLUSTER = WORKERS | {PeerRole.ROUTER, PeerRole.OPERATOR}
#: Roles that may call each service. Other services are for all processes of the cluster, not
#: clients.
CALLERS = {
    "baton.v1.Decode": frozenset({PeerRole.ROUTER, PeerRole.DECODE}),
    "baton.v1.Prefill": WORKERS | {PeerRole.ROUTER},
    "baton.v1.Transfer": WORKERS | {PeerRole.OPERATOR},
}
#: Services of a router that need no role; API keys are checked elsewhere.
PUBLIC = frozenset(
    {"baton.v1.Router", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
)


class PeerGuard(grpc.aio.ServerInterceptor):
    """Refuses calls whose certificate is missing or not for the service.

    Add it after `ErrorInterceptor`, which turns the refusal into a status.
    """

    def __init__(self, cluster: str, *, public: Collection[str] = ()) -> None:
        """Make the guard.

        `public`: services that need no certificate on a port that requires none.
        """
        self._cluster = cluster
        self._public = frozenset(public)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = str(getattr(handler_call_details, "method", "/?/"))
        service = method.strip("/").partition("/")[0]
        if handler is None or service in self._public:
            return handler

        def check(context: _Context) -> None:
            self._check(service, context)

        return wrapped_handler(
            handler,
            unary=lambda behaviour: _guard_unary(behaviour, check),
            stream=lambda behaviour: _guard_stream(behaviour, check),
            read=handler.request_deserializer,
        )

    def _check(self, service: str, context: _Context) -> None:
        names = [name.decode(errors="replace") for name in _names(context)]
        callers = CALLERS.get(service, CLUSTER)
        known = identities(names)
        if any(one.cluster == self._cluster and one.role in callers for one in known):
            return
        who = ", ".join(one.uri for one in known) or "a caller without a certificate of the cluster"
        raise AuthenticationError(f"{service} is not for {who}")


def _names(context: _Context) -> Collection[bytes]:
    found: dict[str, Collection[bytes]] = context.auth_context() or {}  # type: ignore[assignment]
    return found.get(_NAMES_KEY, ())


def _guard_unary(behaviour: Any, check: Callable[[_Context], None]) -> Any:
    async def guarded(request: Any, context: _Context) -> Any:
        check(context)
        return await behaviour(request, context)

    return guarded


def _guard_stream(behaviour: Any, check: Callable[[_Context], None]) -> Any:
    async def guarded(request: Any, context: _Context) -> AsyncGenerator[Any, None]:
        check(context)
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                yield response

    return guarded
