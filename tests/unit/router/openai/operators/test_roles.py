"""The door that changes a worker's role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.router.openai.auth import OPERATOR_PATHS
from services.router.openai.operators.roles import PREFER_PATH
from shared.errors import UnsupportedError
from shared.identity import Role

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi


async def test_the_door_passes_on_who_prefers_what(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    response = await http.post(PREFER_PATH, json={"worker": "decode-0", "role": "prefill"})
    assert (response.status_code, response.json()) == (
        200,
        {"worker": "decode-0", "role": "prefill", "from_step": 7, "limits": ["slow"]},
    )
    assert api.cluster.fleet.told == [("prefer", "decode-0", Role.PREFILL)]
    api.cluster.fleet.failure = UnsupportedError("decode-0 serves decode alone", param="role")
    refused = await http.post(PREFER_PATH, json={"worker": "decode-0", "role": "prefill"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "decode-0 serves decode alone"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"worker": "w", "role": "router"}, "role"),
        ({"worker": "", "role": "decode"}, "worker"),
        ({"role": "decode"}, "worker"),
        ({"worker": "w", "role": "decode", "drain": True}, "drain"),
    ],
)
async def test_what_the_door_does_not_understand_it_refuses_by_name(
    api: OpenAIApi, http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    response = await http.post(PREFER_PATH, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert api.cluster.fleet.told == []


def test_the_door_needs_an_operator() -> None:
    assert PREFER_PATH in OPERATOR_PATHS
