"""Endpoints that there are not: a reason, in the shape of their API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.openai.not_offered import NOT_OFFERED

if TYPE_CHECKING:
    import httpx


@pytest.mark.parametrize("path", NOT_OFFERED)
@pytest.mark.parametrize("below", ["", "/", "/one-1", "/one-1/content/of%20it"])
async def test_what_is_not_offered_says_why(http: httpx.AsyncClient, path: str, below: str) -> None:
    for method, body in (("POST", b"\xff not json"), ("GET", b""), ("PATCH", b""), ("DELETE", b"")):
        response = await http.request(method, path + below, content=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"] == NOT_OFFERED[path]
        if not path.startswith("/v1/messages"):
            assert (error["code"], error["param"]) == ("unsupported_endpoint", None)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/organization/costs", 404),
        ("POST", "/v1/chat", 404),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models/tiny", 405),
        ("GET", "/v1/messages", 405),
        ("GET", "/v1/messages/msg_1", 404),
    ],
)
async def test_what_there_is_not_is_an_error_of_its_api(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await http.request(method, path)
    assert response.status_code == status
    body = response.json()
    assert f"{method} {path}" in body["error"]["message"]
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    if status == 405:
        assert response.headers["allow"]
