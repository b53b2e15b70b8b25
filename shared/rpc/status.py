"""The table from errors to gRPC and HTTP status, and back from a gRPC status to an error.

A status alone is too coarse to rebuild an error, so servers add trailing metadata: `baton-error`
(the class's name), `baton-param` and `baton-retry-after-s`.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING

import grpc

from shared import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

ERROR_KEY = "baton-error"
PARAM_KEY = "baton-param"
RETRY_AFTER_KEY = "baton-retry-after-s"
#: The metadata key that gRPC's own clients use for retries (gRFC A6).
PUSHBACK_KEY = "grpc-retry-pushback-ms"

Code = grpc.StatusCode
#: nginx's status for a client that closed the request; the client never sees it.
CLIENT_CLOSED_REQUEST = 499

_TABLE: dict[type[errors.BatonError], tuple[grpc.StatusCode, int]] = {
    errors.InvalidRequestError: (Code.INVALID_ARGUMENT, HTTPStatus.BAD_REQUEST),
    errors.UnsupportedError: (Code.UNIMPLEMENTED, HTTPStatus.BAD_REQUEST),
    errors.AdapterError: (Code.INVALID_ARGUMENT, HTTPStatus.BAD_REQUEST),
    errors.AuthenticationError: (Code.UNAUTHENTICATED, HTTPStatus.UNAUTHORIZED),
    errors.ModelNotFoundError: (Code.NOT_FOUND, HTTPStatus.NOT_FOUND),
    errors.PayloadTooLargeError: (Code.RESOURCE_EXHAUSTED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    errors.OverloadedError: (Code.RESOURCE_EXHAUSTED, HTTPStatus.TOO_MANY_REQUESTS),
    errors.UnavailableError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.NoWorkerError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.GenerationGoneError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.DrainingError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.AdapterNotLoadedError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.WorkerLostError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.WorkerSilentError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.RankError: (Code.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE),
    errors.DeadlineError: (Code.DEADLINE_EXCEEDED, HTTPStatus.GATEWAY_TIMEOUT),
    errors.RequestCancelledError: (Code.CANCELLED, CLIENT_CLOSED_REQUEST),
    errors.IncompatiblePeerError: (Code.FAILED_PRECONDITION, HTTPStatus.BAD_GATEWAY),
    errors.TransferError: (Code.ABORTED, HTTPStatus.BAD_GATEWAY),
    errors.UnknownIncarnationError: (Code.NOT_FOUND, HTTPStatus.NOT_FOUND),
    errors.SequenceGapError: (Code.OUT_OF_RANGE, HTTPStatus.CONFLICT),
    errors.ConfigError: (Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
    errors.ModelLoadError: (Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
    errors.InternalError: (Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR),
}

_WITH_PARAM = (errors.InvalidRequestError, errors.PayloadTooLargeError)

#: Errors for a status without our metadata.
_FALLBACK: dict[grpc.StatusCode, type[errors.BatonError]] = {
    Code.INVALID_ARGUMENT: errors.InvalidRequestError,
    Code.UNIMPLEMENTED: errors.UnsupportedError,
    Code.UNAUTHENTICATED: errors.AuthenticationError,
    Code.PERMISSION_DENIED: errors.AuthenticationError,
    Code.NOT_FOUND: errors.ModelNotFoundError,
    Code.RESOURCE_EXHAUSTED: errors.OverloadedError,
    Code.UNAVAILABLE: errors.WorkerLostError,
    # Our servers always send the error's name: this status is gRPC's own, of a broken connection.
    Code.INTERNAL: errors.WorkerLostError,
    Code.DEADLINE_EXCEEDED: errors.DeadlineError,
    Code.CANCELLED: errors.RequestCancelledError,
}


def grpc_status(error: BaseException) -> grpc.StatusCode:
    """Return the gRPC status of an error. Foreign exceptions are INTERNAL."""
    return _row(error)[0]


def http_status(error: BaseException) -> int:
    """Return the HTTP status of an error. Foreign exceptions are 500."""
    return int(_row(error)[1])


def error_metadata(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Return trailing metadata from which `from_rpc_error` rebuilds the error."""
    if not isinstance(error, errors.BatonError):
        return ((ERROR_KEY, errors.InternalError.__name__),)
    pairs = [(ERROR_KEY, type(error).__name__)]
    if isinstance(error, _WITH_PARAM) and error.param:
        pairs.append((PARAM_KEY, error.param))
    if isinstance(error, errors.OverloadedError):
        pairs.append((RETRY_AFTER_KEY, f"{error.retry_after_s:.3f}"))
        pairs.append((PUSHBACK_KEY, str(math.ceil(error.retry_after_s * 1000))))
        pairs.append((PARAM_KEY, error.reason.value))
    if isinstance(error, errors.IncompatiblePeerError):
        pairs.append((PARAM_KEY, error.field))
    if isinstance(error, errors.TransferError):
        pairs.append((PARAM_KEY, error.reason.value))
    return tuple(pairs)


def from_rpc_error(error: grpc.RpcError, *, peer: str) -> errors.BatonError:
    """Return the error of the server at `peer`. The message contains the peer's name."""
    code, details, metadata = _read(error)
    return from_status(code, details, dict(metadata), peer=peer)


def from_status(
    code: grpc.StatusCode, details: str | None, pairs: dict[str, str], *, peer: str
) -> errors.BatonError:
    """Return the error of a status' parts; `pairs` is the result of `error_metadata`."""
    name = pairs.get(ERROR_KEY)
    cls = next((c for c in _TABLE if c.__name__ == name), None)
    if cls is None:
        cls = _FALLBACK.get(code, errors.InternalError)
    return _rebuild(cls, f"{peer}: {details or code.name.lower()}", pairs)


def _read(
    error: grpc.RpcError,
) -> tuple[grpc.StatusCode, str | None, Iterable[tuple[str, str]]]:
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return Code.UNKNOWN, str(error), ()
    pairs = [(str(k), str(v)) for k, v in error.trailing_metadata() or ()]
    return error.code(), error.details(), pairs


def _rebuild(
    cls: type[errors.BatonError], message: str, pairs: dict[str, str]
) -> errors.BatonError:
    if issubclass(cls, _WITH_PARAM):
        return cls(message, param=pairs.get(PARAM_KEY))
    if cls is errors.OverloadedError:
        return errors.OverloadedError(
            message,
            retry_after_s=float(pairs.get(RETRY_AFTER_KEY, 1)),
            reason=_refusal_reason(pairs.get(PARAM_KEY, "")),
        )
    if cls is errors.TransferError:
        reason = pairs.get(PARAM_KEY, errors.TransferFailure.ABORTED.value)
        return errors.TransferError(errors.TransferFailure(reason), message)
    if cls is errors.IncompatiblePeerError:
        return errors.IncompatiblePeerError.relayed(pairs.get(PARAM_KEY, "unknown"), message)
    return cls(message)


def _refusal_reason(value: str) -> errors.RefusalReason:
    """Return the reason of a refusal; OTHER if it is unknown, as from a newer peer."""
    known = errors.RefusalReason
    return known(value) if value in known.__members__.values() else known.OTHER


def _row(error: BaseException) -> tuple[grpc.StatusCode, int]:
    for cls in type(error).__mro__:
        if cls in _TABLE:
            return _TABLE[cls]
    return Code.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR
