"""Conversion of a servicer's exceptions to a status with metadata; unexpected ones are logged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from shared.errors import BatonError, InvalidRequestError
from shared.rpc.status import error_metadata, grpc_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

log = structlog.get_logger(__name__)

#: The handler of a method.
_HANDLER = Any


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The only place in a server that catches every exception."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_HANDLER]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _HANDLER:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = getattr(handler_call_details, "method", "?")
        if handler is None or (handler.request_streaming and not handler.response_streaming):
            return handler
        return wrapped_handler(
            handler,
            unary=lambda behaviour: _guard_unary(behaviour, method),
            stream=lambda behaviour: _guard_stream(behaviour, method),
            read=_Reader(handler.request_deserializer),
        )


def wrapped_handler(
    handler: _HANDLER,
    *,
    unary: Callable[[Any], Any],
    stream: Callable[[Any], Any],
    read: Callable[[bytes], Any],
) -> _HANDLER:
    """A handler of the same kind: `unary` or `stream` wraps what answers, by the kind of answer."""
    asked = "stream" if handler.request_streaming else "unary"
    kind = f"{asked}_stream" if handler.response_streaming else f"{asked}_unary"
    behaviour = (stream if handler.response_streaming else unary)(getattr(handler, kind))
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(behaviour, read, handler.response_serializer)


class _Malformed:
    """Represents a message that cannot be parsed."""


class _Reader:
    """Reads messages.

    gRPC alone would answer UNKNOWN to malformed bytes, and log a traceback for each: any client
    could fill the log.
    """

    def __init__(self, read: Callable[[bytes], Any]) -> None:
        self._read = read

    def __call__(self, data: bytes) -> Any:
        try:
            return self._read(data)
        except DecodeError:
            return _Malformed()


def _require_parsed(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise InvalidRequestError("the request is not a message of this method")
    # Messages of a caller's stream are checked one by one.
    return _parsed(request) if hasattr(request, "__aiter__") else request


async def _parsed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _require_parsed(request)


def _guard_unary(behaviour: Any, method: str) -> Any:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(_require_parsed(request), context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:  # noqa: BLE001 the process edge: becomes a status
            await _abort(context, error, method)

    return guarded


def _guard_stream(behaviour: Any, method: str) -> Any:
    async def guarded(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        responses = None
        try:
            responses = behaviour(_require_parsed(request), context)
            async for response in responses:
                yield response
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:  # noqa: BLE001 the process edge: becomes a status
            await _abort(context, error, method)
        finally:
            # A servicer frees the call's resources when its generator is closed.
            if responses is not None and hasattr(responses, "aclose"):
                await responses.aclose()

    return guarded


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str
) -> None:
    await context.abort(*describe_error(error, method))


def describe_error(
    error: Exception, method: str
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return status, text and metadata for the caller of `method`. Logs unexpected errors."""
    if isinstance(error, BatonError):
        details = str(error)
    else:
        log.error("rpc_failed", method=method, exc_info=error)
        details = f"internal error in {method}; the server's log has the details"
    return grpc_status(error), details, error_metadata(error)
