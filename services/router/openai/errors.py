"""Errors as OpenAI's JSON object with the right status, without internal details."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from services.router.openai.dialect import class_of, is_vllms
from shared.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    UnavailableError,
    UnsupportedError,
)
from shared.rpc.status import CLIENT_CLOSED_REQUEST, http_status

_JSON = msgspec.json.Encoder()
_UNAVAILABLE_RETRY_AFTER_S = 1.0

#: Status to (type, code). What is not here is invalid_request_error below 500.
_KINDS: dict[int, tuple[str, str | None]] = {
    HTTPStatus.UNAUTHORIZED: ("authentication_error", "invalid_api_key"),
    HTTPStatus.FORBIDDEN: ("permission_error", None),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("invalid_request_error", "request_too_large"),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: ("invalid_request_error", "unsupported_media_type"),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "rate_limit_exceeded"),
    CLIENT_CLOSED_REQUEST: ("invalid_request_error", "client_closed_request"),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("server_error", "internal_error"),
    HTTPStatus.BAD_GATEWAY: ("server_error", "internal_error"),
    HTTPStatus.SERVICE_UNAVAILABLE: ("service_unavailable_error", "unavailable"),
    HTTPStatus.GATEWAY_TIMEOUT: ("timeout_error", "deadline_exceeded"),
}


#: Keys are checked before it matters whose API it is.
_OF_KEYS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class FieldError(InvalidRequestError):
    """A field of the body is wrong. `code` is OpenAI's code for the kind of error."""

    def __init__(self, message: str, *, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message, param=param)
        self.code = code


class ErrorDetail(msgspec.Struct):
    """The error object of OpenAI's API."""

    message: str
    type: str
    param: str | None = None
    #: The status, in vLLM's words.
    code: str | int | None = None


class ErrorBody(msgspec.Struct):
    """The body of every response that is not a success."""

    error: ErrorDetail


def error_status(error: Exception) -> int:
    """Return the HTTP status for any exception that an endpoint can raise."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, ClientDisconnect):
        return CLIENT_CLOSED_REQUEST
    return http_status(error)


def error_json(error: Exception, *, request_id: str, path: str = "") -> bytes:
    """Return the body for any exception. Bugs and failures inside the cluster are not described.

    `path`: of the request; it decides on the words, see dialect.py.
    """
    detail, status = error_detail(error, request_id=request_id), error_status(error)
    if is_vllms(path, detail.param) and status not in _OF_KEYS:
        detail = ErrorDetail(detail.message, class_of(status), detail.param, status)
    return _JSON.encode(ErrorBody(detail))


def error_detail(error: Exception, *, request_id: str) -> ErrorDetail:
    """Return the part of any exception that a client may see."""
    status = error_status(error)
    kind, code = _KINDS.get(status, ("invalid_request_error", None))
    message = str(error)
    if isinstance(error, HTTPException):
        message = str(error.detail)
    elif isinstance(error, ClientDisconnect):
        message = "the client closed the connection"
    elif status in (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY):
        message = f"the request failed inside the server; its id is {request_id}"
    param = None
    if isinstance(error, InvalidRequestError | PayloadTooLargeError):
        param = error.param
    if isinstance(error, FieldError):
        code = error.code
    elif isinstance(error, UnsupportedError):
        code = "unsupported_parameter"
    elif isinstance(error, InvalidRequestError):
        code = "invalid_value"
    elif isinstance(error, ModelNotFoundError):
        param, code = "model", "model_not_found"
    return ErrorDetail(message, kind, param, code)


def error_headers(error: Exception) -> dict[str, str]:
    """Return headers of an error: Retry-After, the login scheme, the framework's headers."""
    if isinstance(error, AuthenticationError):
        return {"www-authenticate": 'Bearer realm="baton"'}
    if isinstance(error, OverloadedError):
        return _retry_after(error.retry_after_s)
    if isinstance(error, UnavailableError):
        return _retry_after(_UNAVAILABLE_RETRY_AFTER_S)
    if isinstance(error, HTTPException):
        return dict(error.headers or {})
    return {}


def _retry_after(seconds: float) -> dict[str, str]:
    # The standard header has whole seconds; OpenAI's clients prefer the one in milliseconds.
    whole = max(1, math.ceil(seconds))
    return {"retry-after": str(whole), "retry-after-ms": str(max(1, math.ceil(seconds * 1000)))}
