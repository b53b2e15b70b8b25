"""Pages of other sites: none unless it is said, then those that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.router.config import RouterConfig
from services.router.settings.cors import CorsSettings
from shared.config import load_config
from shared.errors import AuthenticationError, ConfigError
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.admission.caller import Caller

SITE = "https://chat.example"
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


class NoKeys:
    """Lets no site in."""

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        raise AuthenticationError("who?")


def client(**settings: Any) -> httpx.AsyncClient:
    api = OpenAIApi(keys=settings.pop("keys", None), cors=CorsSettings(**settings))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app), base_url="http://test")


async def may_ask(http: httpx.AsyncClient, origin: str = SITE, **wanted: str) -> httpx.Response:
    """What a browser asks before it sends a page's request."""
    headers = {
        "origin": origin,
        "access-control-request-method": wanted.get("method", "POST"),
        "access-control-request-headers": wanted.get("headers", "content-type,authorization"),
    }
    return await http.options(CHAT, headers=headers)


async def test_no_site_is_let_in_unless_it_is_said() -> None:
    async with client() as http:
        response = await may_ask(http)
        assert response.status_code == 405
        answer = await http.post(CHAT, json=BODY, headers={"origin": SITE})
        assert answer.status_code == 200
        for given in (response, answer):
            assert not [name for name in given.headers if name.startswith("access-control")]


async def test_a_named_site_is_let_in_and_no_other() -> None:
    async with client(allowed_origins=(SITE,)) as http:
        response = await may_ask(http)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == SITE
        assert "POST" in response.headers["access-control-allow-methods"]
        assert "authorization" in response.headers["access-control-allow-headers"]
        answer = await http.post(CHAT, json=BODY, headers={"origin": SITE})
        assert answer.headers["access-control-allow-origin"] == SITE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        stream = await http.post(CHAT, json={**BODY, "stream": True}, headers={"origin": SITE})
        assert stream.headers["access-control-allow-origin"] == SITE
        other = await may_ask(http, "https://evil.example")
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers
        # A page may read why it was refused.
        wrong = await http.post(CHAT, json={}, headers={"origin": SITE})
        assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, SITE)


async def test_methods_and_headers_can_be_named() -> None:
    settings = {"allowed_methods": ("GET",), "allowed_headers": ("x-mine",)}
    async with client(allowed_origins=("*",), **settings) as http:
        assert (await may_ask(http, method="GET", headers="x-mine")).status_code == 200
        assert (await may_ask(http, method="POST", headers="x-mine")).status_code == 400
        assert (await may_ask(http, method="GET", headers="x-other")).status_code == 400


async def test_a_question_needs_no_key_and_an_answer_does() -> None:
    async with client(allowed_origins=("*",), keys=NoKeys()) as http:
        assert (await may_ask(http)).headers["access-control-allow-origin"] == "*"
        answer = await http.post(CHAT, json=BODY, headers={"origin": SITE})
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == "*"


def test_the_flags_are_vllms() -> None:
    flags = ["--model", "m", "--allowed-origins", f'["{SITE}"]', "--allowed-methods", '["GET"]']
    flags += ["--allowed-headers", '["x-mine"]', "--allow-credentials"]
    config = load_config(RouterConfig, flags, prog="router", environ={})
    assert config.cors == CorsSettings(
        allowed_origins=(SITE,),
        allowed_methods=("GET",),
        allowed_headers=("x-mine",),
        allow_credentials=True,
    )


@pytest.mark.parametrize("origins", [(), ("*",), (SITE, "*")])
def test_credentials_need_the_name_of_each_site(origins: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--allow-credentials"):
        CorsSettings(allowed_origins=origins, allow_credentials=True)
