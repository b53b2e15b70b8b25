"""A tenant's rate-limit headers on the response to its HTTP request, also on a refusal."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from services.router.admission.tenant import Tenant


@dataclass(slots=True)
class _Noted:
    tenant: Tenant | None = None


#: Of the present HTTP request. It may be served by several tasks.
_noted: ContextVar[_Noted | None] = ContextVar("noted", default=None)


def note_tenant(tenant: Tenant) -> None:
    """Record the tenant of the present HTTP request. Does nothing outside HTTP."""
    noted = _noted.get()
    if noted is not None:
        noted.tenant = tenant


class RateLimitMiddleware:
    """Adds headers when a response begins, if `note_tenant` was called for its request."""

    def __init__(
        self, app: ASGIApp, headers: Callable[[Tenant], Sequence[tuple[str, str]]]
    ) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted = _Noted()
        _noted.set(noted)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and noted.tenant is not None:
                added = [(k.encode(), v.encode()) for k, v in self._headers(noted.tenant)]
                if added:
                    message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)
