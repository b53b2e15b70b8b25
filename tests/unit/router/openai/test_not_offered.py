"""Endpoints that there are not: a reason, in the shape of their API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.openai.not_offered import NOT_OFFERED

if TYPE_CHECKING:
    import httpx


@pytest.mark.parametrize("path", NOT_OFFERED)
async def test_what_is_not_offered_says_why(http: httpx.AsyncClient, path: str) -> None:
    url = path.replace("{rest:path}", "speech/of/any/kind")
    for method, body in (("POST", b"\xff not json"), ("GET", b"")):
        response = await http.request(method, url, content=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"] == NOT_OFFERED[path]
        if not path.startswith("/v1/messages"):
            assert (error["code"], error["param"]) == ("unsupported_endpoint", None)
