"""Gives every request an id: the client's `x-request-id` if it is sane, or else a new one."""

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

    An id that is too long or has odd characters is replaced: it is a hint for tracing and no
    reason to refuse work. The response's header says which id counts.
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
                # Errors set it themselves, for those that pass by this middleware.
                if all(name != HEADER for name, _ in headers):
                    # The body may have given another one.
                    message["headers"] = [*headers, (HEADER, state["request_id"].encode())]
            await send(message)

        with bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_id)


def adopt_id(request: Request, request_id: str | None) -> None:
    """Name the request as its body does, unless a header has. Nothing is named before this.

    Raises:
        FieldError: it is no name that a header could carry.
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
    """The `id` of the response's body."""
    return f"{prefix}-{request.state.request_id}"


def generation_ids(request: Request, prefix: str, num_prompts: int) -> list[str]:
    """Ids for the pipeline, one per prompt.

    They are unique even when a client sends its id twice, as it does when it tries again: two
    requests of the same name on one worker could not be told apart.
    """
    base = f"{prefix}-{request.state.unique_id}"
    return [base] if num_prompts == 1 else [f"{base}-{i}" for i in range(num_prompts)]
