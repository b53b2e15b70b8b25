"""Request ids: the client's `x-request-id` if it is valid, otherwise a new one."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from structlog.contextvars import bind_contextvars, bound_contextvars

from services.router.openai.errors import FieldError
from services.router.request.request_name import RULE, is_request_name

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"


class RequestIdMiddleware:
    """Puts the id into the request's state, the log context and the response's header.

    An id that is too long or has invalid characters is replaced: it is a hint for tracing and no
    reason to refuse the request. The response's header has the id in use.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        name = given.decode("latin-1")
        is_given = is_request_name(name)
        request_id = name if is_given else secrets.token_hex(16)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["unique_id"] = _unique(request_id) if is_given else request_id
        state["has_given_id"] = is_given

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                # Error responses that bypass this middleware set the header themselves.
                if all(name != HEADER for name, _ in headers):
                    # The body may have set another id.
                    message["headers"] = [*headers, (HEADER, state["request_id"].encode())]
            await send(message)

        with bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_id)


def adopt_id(request: Request, request_id: str | None) -> None:
    """Set the request's id from its body, unless a header has set it. Call it before any use.

    Raises:
        FieldError: the id is not a valid header value.
    """
    state = request.state
    if request_id is None or state.has_given_id:
        return
    if not is_request_name(request_id):
        raise FieldError(f"request_id must have {RULE}", param="request_id")
    state.request_id, state.unique_id = request_id, _unique(request_id)
    bind_contextvars(request_id=request_id)


def _unique(request_id: str) -> str:
    return f"{request_id}-{secrets.token_hex(4)}"


def response_id(request: Request, prefix: str) -> str:
    """Return the `id` of the response's body."""
    return f"{prefix}-{request.state.request_id}"


def request_names(request: Request, prefix: str) -> tuple[str, ...]:
    """Return the names by which a client can mean this request later."""
    return request.state.request_id, response_id(request, prefix)


def generation_ids(request: Request, prefix: str, num_prompts: int) -> list[str]:
    """Return one id per prompt for the pipeline.

    They are unique even if a client sends an id twice, as in a retry: two requests with one id on
    one worker could not be distinguished.
    """
    base = f"{prefix}-{request.state.unique_id}"
    return [base] if num_prompts == 1 else [f"{base}-{i}" for i in range(num_prompts)]
