"""GET /v1/models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.router.openai_api import MAX_MODEL_LEN, MODEL

if TYPE_CHECKING:
    import httpx


async def test_every_name_is_listed(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    assert (await http.get("/v1/models/")).json() == listed
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == [MODEL, "alias"]
    for card in listed["data"]:
        assert card["max_model_len"] == MAX_MODEL_LEN
        assert (card["object"], card["root"], card["created"]) == ("model", MODEL, 1_700_000_000)


async def test_one_model_by_name(http: httpx.AsyncClient) -> None:
    assert (await http.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
    response = await http.get("/v1/models/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
