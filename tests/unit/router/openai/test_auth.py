"""Every path of the HTTP API is closed to whoever has no key, but for the probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.routing import Route
from structlog.testing import capture_logs

from services.router.admission.keys.file_keys import FileKeys
from services.router.admission.keys.key_ring import KeyRing
from tests.fakes.router.openai_api import MODEL, OpenAIApi
from tests.fakes.security.keys import keys_on_disk, wrong_secret

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.router.request.generation import GenerationRequest
    from services.router.routing.explain import Explanation
    from tests.fakes.security.keys import KeysOnDisk

#: All that may be asked without a key. Whoever adds to it has to say so in docs/security.md.
PROBES = {
    ("GET", "/live"),
    ("GET", "/health"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("GET", "/ready"),
}
OPERATORS = {("GET", "/metrics"), ("POST", "/v1/route")}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


class NoExplainer:
    """Only there so that the path is served."""

    def explain(self, request: GenerationRequest) -> Explanation:
        raise AssertionError(f"{request.request_id} got past the door")


@pytest.fixture
def disk(tmp_path: Path) -> KeysOnDisk:
    return keys_on_disk(tmp_path)


@pytest.fixture
def api(disk: KeysOnDisk) -> OpenAIApi:
    return OpenAIApi(keys=KeyRing(FileKeys(disk.path)), explainer=NoExplainer())


def routes(api: OpenAIApi) -> Iterator[tuple[str, str]]:
    """Every method and path that the application serves, documents included."""
    for route in api.app.routes:
        assert isinstance(route, Route), f"{route} is no plain route: teach this test its kind"
        for method in sorted(route.methods or ()):
            yield method, route.path.replace("{model:path}", MODEL)


def outsiders(disk: KeysOnDisk) -> dict[str, list[tuple[str, bytes]]]:
    """Headers of those who have no valid key."""
    key, other = disk.keys["a"], disk.keys["b"]
    return {
        "none": [],
        "empty": [("authorization", b"Bearer ")],
        "wrong": [("authorization", f"Bearer {wrong_secret(key)}".encode())],
        "wrong, Anthropic's header": [("x-api-key", wrong_secret(key).encode())],
        "no key at all": [("authorization", b"Bearer none")],
        "other scheme": [("authorization", f"Basic {key}".encode())],
        "very long": [("authorization", b"Bearer " + b"a" * 50_000)],
        "not ascii": [("authorization", "Bearer schlüssel".encode())],
        "not text": [("authorization", b"Bearer \xff\xfe\x80")],
        "two keys": [("authorization", f"Bearer {k}".encode()) for k in (key, other)],
        "two headers": [("authorization", f"Bearer {key}".encode()), ("x-api-key", b"none")],
    }


async def ask(api: OpenAIApi, method: str, path: str, headers: Any = (), **body: Any) -> Any:
    transport = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers=list(headers), **body)


def key_of(disk: KeysOnDisk, tenant: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {disk.keys[tenant]}")]


async def test_nobody_gets_anything_without_a_key(api: OpenAIApi, disk: KeysOnDisk) -> None:
    closed = [route for route in routes(api) if route not in PROBES | {("HEAD", "/health")}]
    assert {"/v1/chat/completions", "/v1/route", "/metrics", "/openapi.json", "/docs"} <= {
        path for _, path in closed
    }
    for method, path in [
        *closed,
        ("GET", "/"),
        ("GET", "/none"),
        ("GET", "/health/"),
        ("GET", "//health"),
    ]:
        for name, headers in outsiders(disk).items():
            response = await ask(api, method, path, headers, json=CHAT)
            assert response.status_code == 401, (method, path, name)
            assert response.headers["www-authenticate"] == 'Bearer realm="baton"'
            assert response.headers["x-request-id"]
            if method == "HEAD":
                continue
            error = response.json()["error"]
            assert error["type"] == "authentication_error"
            # Anthropic's errors have no code, and say what they are.
            if path.startswith("/v1/messages"):
                assert (response.json()["type"], list(error)) == ("error", ["type", "message"])
            else:
                assert error["code"] == "invalid_api_key"
    assert api.generator.requests == []


async def test_probes_are_open(api: OpenAIApi) -> None:
    assert set(routes(api)) >= PROBES
    for method, path in PROBES:
        assert (await ask(api, method, path)).status_code == 200


async def test_what_concerns_all_tenants_is_for_operators(api: OpenAIApi, disk: KeysOnDisk) -> None:
    assert set(routes(api)) >= OPERATORS
    for method, path in OPERATORS:
        response = await ask(api, method, path, key_of(disk, "a"), json={})
        assert response.status_code == 403
        assert response.json()["error"]["type"] == "permission_error"
    assert (await ask(api, "GET", "/metrics", key_of(disk, "ops"))).status_code == 200


async def test_metrics_can_be_opened_to_scrapers_and_nothing_else_with_them(
    disk: KeysOnDisk,
) -> None:
    api = OpenAIApi(keys=KeyRing(FileKeys(disk.path)), open_metrics=True)
    assert (await ask(api, "GET", "/metrics")).status_code == 200
    assert (await ask(api, "GET", "/v1/models")).status_code == 401


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_request_is_its_keys_tenants(api: OpenAIApi, disk: KeysOnDisk, path: str) -> None:
    body = {"model": MODEL, "max_tokens": 4, "cache_salt": "s"}
    body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": CHAT["messages"]}
    for tenant in ("a", "b"):
        response = await ask(api, "POST", path, key_of(disk, tenant), json=body)
        assert response.status_code == 200
    a, b = api.generator.requests
    assert (a.tenant.name, b.tenant.name) == ("a", "b")
    assert a.tenant.weight == 2.0
    # The same salt from both clients stays two salts.
    assert len({a.cache_salt, b.cache_salt, b""}) == 3


async def test_a_request_id_of_another_tenant_is_no_handle_on_its_request(
    api: OpenAIApi, disk: KeysOnDisk
) -> None:
    for tenant in ("a", "b"):
        headers = [*key_of(disk, tenant), ("x-request-id", "mine")]
        response = await ask(api, "POST", "/v1/chat/completions", headers, json=CHAT)
        assert response.status_code == 200
    a, b = api.generator.requests
    # What reaches the cluster under one name are two requests.
    assert a.request_id != b.request_id
    assert (a.tenant.name, b.tenant.name) == ("a", "b")


async def test_a_revoked_key_is_refused(api: OpenAIApi, disk: KeysOnDisk) -> None:
    keys = KeyRing(FileKeys(disk.path))
    api = OpenAIApi(keys=keys)
    assert (await ask(api, "GET", "/v1/models", key_of(disk, "a"))).status_code == 200
    disk.remove("a")
    keys.files[0].reload()
    assert (await ask(api, "GET", "/v1/models", key_of(disk, "a"))).status_code == 401
    assert (await ask(api, "GET", "/v1/models", key_of(disk, "b"))).status_code == 200


async def test_no_part_of_a_key_is_ever_shown(api: OpenAIApi, disk: KeysOnDisk) -> None:
    secret = disk.keys["a"][20:]
    shown = []
    with capture_logs() as logs:
        for headers in (*outsiders(disk).values(), key_of(disk, "a")):
            for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"n": "x"})):
                response = await ask(api, "POST", path, headers, json=body)
                shown.append(repr(response.headers) + response.text)
    shown.append((await ask(api, "GET", "/metrics", key_of(disk, "ops"))).text)
    assert not [text for text in (*shown, repr(logs)) if secret in text]


async def test_there_are_no_web_sockets(api: OpenAIApi) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/health", "headers": [], "query_string": b""}
    await api.app(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
