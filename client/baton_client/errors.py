"""The errors of this client, and the conversion of a gRPC status to an exception.

BatonError
├── InvalidRequestError     the request cannot be served as written; `param` names the field
│   ├── UnsupportedError    a known feature that this deployment does not offer
│   └── PayloadTooLargeError  the prompt or the message is over a limit
├── AuthenticationError     no API key, or an unknown one
├── ModelNotFoundError      the model is not served
├── OverloadedError         refused before any work was done; `retry_after_s` says when to retry
├── UnavailableError        the request is valid; a retry may succeed
├── DeadlineError           the time allowed is over
├── RequestCancelledError   cancelled, by this side or by the server
└── InternalError           a bug in the server, or an answer that this client cannot read
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_client.types import PartialAnswer

#: Trailing metadata with details that the status lacks.
ERROR_KEY = "baton-error"
PARAM_KEY = "baton-param"
RETRY_AFTER_KEY = "baton-retry-after-s"


class BatonError(Exception):
    """Base of all errors of this client. `status` is None for local errors.

    `received` has exactly the parts of answers that arrived before the error: their text and their
    tokens.
    """

    def __init__(
        self, message: str, *, status: grpc.StatusCode | None = None, request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.received: tuple[PartialAnswer, ...] = ()


class InvalidRequestError(BatonError):
    """The request cannot be served as written. `param` names the wrong field, if there is one."""

    param: str | None = None


class UnsupportedError(InvalidRequestError):
    """A known feature that this deployment does not offer."""


class AuthenticationError(BatonError):
    """No API key, or an unknown one."""


class ModelNotFoundError(BatonError):
    """The requested model is not served here."""


class PayloadTooLargeError(InvalidRequestError):
    """A prompt, list or message is over its limit."""


class OverloadedError(BatonError):
    """Refused before any work was done. `retry_after_s` is the server's advice, if it gave one."""

    retry_after_s: float | None = None


class UnavailableError(BatonError):
    """The request is valid; a retry may succeed."""


class DeadlineError(BatonError):
    """The time allowed for the request is over."""


class RequestCancelledError(BatonError):
    """The request was cancelled, by this side or by the server."""

    #: Whether the server ended it because it was told to. Otherwise it may be shutting down.
    was_aborted: bool = False


class InternalError(BatonError):
    """A bug in the server, or an answer that this client cannot read."""


Code = grpc.StatusCode

#: Every status has a row, so that a new one in gRPC fails a test, not a user.
BY_STATUS: Mapping[grpc.StatusCode, type[BatonError]] = {
    Code.INVALID_ARGUMENT: InvalidRequestError,
    Code.OUT_OF_RANGE: InvalidRequestError,
    Code.FAILED_PRECONDITION: InvalidRequestError,
    Code.ALREADY_EXISTS: InvalidRequestError,
    Code.UNIMPLEMENTED: UnsupportedError,
    Code.UNAUTHENTICATED: AuthenticationError,
    Code.PERMISSION_DENIED: AuthenticationError,
    Code.NOT_FOUND: ModelNotFoundError,
    Code.RESOURCE_EXHAUSTED: OverloadedError,
    Code.UNAVAILABLE: UnavailableError,
    Code.ABORTED: UnavailableError,
    Code.DEADLINE_EXCEEDED: DeadlineError,
    Code.CANCELLED: RequestCancelledError,
    Code.INTERNAL: InternalError,
    Code.DATA_LOSS: InternalError,
    Code.UNKNOWN: InternalError,
    Code.OK: InternalError,
}

#: gRPC's own messages, on either side, for a message over its limit. There is no other sign of it:
#: the status is that of an overloaded server, which adds metadata of its own.
_TOO_LARGE = "larger than max"

#: Names of server errors that are more precise than their status. Others follow the status.
BY_NAME: Mapping[str, type[BatonError]] = {
    "PayloadTooLargeError": PayloadTooLargeError,
    "OverloadedError": OverloadedError,
    "UnsupportedError": UnsupportedError,
}


def from_rpc_error(error: grpc.aio.AioRpcError, *, request_id: str = "") -> BatonError:
    """Return the exception for a failed call."""
    metadata = {str(key): str(value) for key, value in error.trailing_metadata() or ()}
    details = error.details() or f"the call failed with {error.code().name}"
    return from_status(error.code(), details, metadata, request_id=request_id)


def from_status(
    status: grpc.StatusCode,
    details: str,
    metadata: Mapping[str, str],
    *,
    request_id: str = "",
) -> BatonError:
    """Return the exception for a status with its trailing metadata."""
    cls = BY_NAME.get(metadata.get(ERROR_KEY, ""), BY_STATUS[status])
    if status is Code.RESOURCE_EXHAUSTED and ERROR_KEY not in metadata and _TOO_LARGE in details:
        cls = PayloadTooLargeError
    error = cls(details, status=status, request_id=request_id)
    if isinstance(error, InvalidRequestError):
        error.param = metadata.get(PARAM_KEY)
    if isinstance(error, RequestCancelledError):
        error.was_aborted = ERROR_KEY in metadata
    if isinstance(error, OverloadedError):
        error.retry_after_s = _seconds(metadata.get(RETRY_AFTER_KEY))
    return error


def invalid(param: str, message: str) -> InvalidRequestError:
    """Return an InvalidRequestError found before anything was sent."""
    return _named(InvalidRequestError(f"{param}: {message}"), param)


def unsupported(param: str, message: str) -> InvalidRequestError:
    """Return an UnsupportedError found before anything was sent."""
    return _named(UnsupportedError(f"{param}: {message}"), param)


def too_large(param: str, message: str) -> InvalidRequestError:
    """Return a PayloadTooLargeError found before anything was sent."""
    return _named(PayloadTooLargeError(f"{param}: {message}"), param)


def _named(error: InvalidRequestError, param: str) -> InvalidRequestError:
    error.param = param
    return error


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
