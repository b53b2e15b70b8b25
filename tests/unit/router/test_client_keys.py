"""`--api-key` and VLLM_API_KEY: keys that let clients in and are no tenants'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from services.router.config import RouterConfig
from services.router.operated import settings_without_secrets
from services.router.security import open_security
from shared.config import load_config
from shared.errors import AuthenticationError, ConfigError
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.security.keys import cluster_token_file, keys_on_disk

if TYPE_CHECKING:
    from pathlib import Path

    from services.router.admission.keys.key_ring import KeyRing

GIVEN = ("--api-key", "sk-1", "se,cret")


def config(*flags: str, **environ: str) -> RouterConfig:
    return load_config(RouterConfig, ["--model", "m", *flags], prog="test", environ=environ)


def ring(folder: Path, *flags: str, **environ: str) -> KeyRing | None:
    token = ("--cluster-token", str(cluster_token_file(folder)))
    return open_security(config(*flags, *token, **environ)).keys


async def status(api: OpenAIApi, path: str, **headers: str) -> int:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get(path, headers=headers)).status_code


async def test_each_key_lets_a_client_in_and_no_operator(tmp_path: Path) -> None:
    api = OpenAIApi(keys=ring(tmp_path, *GIVEN))
    for key in ("sk-1", "se,cret"):
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert await status(api, "/v1/models", **headers) == 200
            assert await status(api, "/openapi.json", **headers) == 200
            for path in ("/metrics", "/load", "/server_info"):
                assert await status(api, path, **headers) == 403, path
    for other in ("sk-2", "sk-1,se,cret", "se", "cret", "sk-"):
        assert await status(api, "/v1/models", authorization=f"Bearer {other}") == 401
    assert await status(api, "/v1/models") == 401
    assert await status(api, "/health") == 200


def test_calls_over_grpc_show_the_same_keys(tmp_path: Path) -> None:
    keys = ring(tmp_path, *GIVEN)
    assert keys is not None
    assert keys.caller_of_call([("authorization", "Bearer sk-1")]).tenant.name == ""
    with pytest.raises(AuthenticationError, match="the API key is not valid"):
        keys.check([("authorization", "Bearer sk-2")])


def test_they_and_refusals_are_counted(tmp_path: Path) -> None:
    keys = ring(tmp_path, *GIVEN)
    assert keys is not None
    registry = CollectorRegistry()
    registry.register(keys)
    assert registry.get_sample_value("baton_api_keys") == 2
    with pytest.raises(AuthenticationError):
        keys.caller([(b"x-api-key", b"none")])
    assert registry.get_sample_value("baton_auth_refused_total", {"reason": "unknown"}) == 1


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ((), {}, ()),
        ((), {"VLLM_API_KEY": ""}, ()),
        # One key, whatever is in it.
        ((), {"VLLM_API_KEY": "a,b"}, ("a,b",)),
        ((), {"VLLM_API_KEY": "[1]"}, ("[1]",)),
        (GIVEN, {"VLLM_API_KEY": "a"}, ("sk-1", "se,cret")),
        ((), {"VLLM_API_KEY": "a", "BATON_CLIENT_KEYS": '["b", "c"]'}, ("b", "c")),
        # The SDK's own key is no key of the router.
        ((), {"BATON_API_KEY": "a"}, ()),
    ],
)
def test_flags_count_before_the_environment(
    flags: tuple[str, ...], environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert config(*flags, **environ).keys.client_keys == expected


def test_a_router_with_them_needs_what_one_with_a_file_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key needs --cluster-token"):
        open_security(config(*GIVEN))
    everywhere = ("--host", "0.0.0.0")
    assert ring(tmp_path, *GIVEN, *everywhere) is not None
    with pytest.raises(ConfigError, match="would be open"):
        ring(tmp_path, *everywhere)


@pytest.mark.parametrize("key", ["ключ", "a\tb", "a b"])
def test_what_no_header_can_say_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="visible ASCII") as refused:
        config(VLLM_API_KEY=key)
    assert key not in str(refused.value)


def test_a_file_of_tenants_excludes_them(tmp_path: Path) -> None:
    file = str(keys_on_disk(tmp_path).path)
    with pytest.raises(ConfigError, match="exclude each other"):
        config("--api-keys", file, VLLM_API_KEY="a")


def test_no_operator_is_shown_a_key() -> None:
    shown: dict[str, Any] = settings_without_secrets(config(*GIVEN))
    assert "sk-1" not in str(shown)
    assert shown["client_keys"] == "hidden"
    assert settings_without_secrets(config())["client_keys"] == ()
