"""Errors as JSON objects of Anthropic's API."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from services.router.openai.errors import error_detail, error_status

_JSON = msgspec.json.Encoder()

#: All paths below this one belong to Anthropic's API.
PREFIX = "/v1/messages"

#: Error type by status. Others: invalid_request_error below 500, api_error from 500.
_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


class ErrorDetail(msgspec.Struct):
    """Type and message of an error."""

    type: str
    message: str


class ErrorBody(msgspec.Struct):
    """The body of every response that is not a success, and of a stream's error event."""

    error: ErrorDetail
    request_id: str
    type: str = "error"


def is_anthropic(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API."""
    return path == PREFIX or path.startswith(PREFIX + "/")


def error_json(error: Exception, *, request_id: str) -> bytes:
    """Return the body for any exception. Bugs and failures inside the cluster are not described."""
    status = error_status(error)
    default = "api_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    detail = error_detail(error, request_id=request_id)
    shown = ErrorDetail(_TYPES.get(status, default), detail.message)
    return _JSON.encode(ErrorBody(shown, request_id))
