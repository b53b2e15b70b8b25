"""The doors that change all workers: what they take, and what they pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.router.fleet.pause import PauseMode
from services.router.openai.auth import OPERATOR_PATHS
from services.router.openai.operators.lifecycle import LIFECYCLE_PATHS
from shared.errors import UnavailableError

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi


@pytest.mark.parametrize(
    ("door", "body", "told", "answer"),
    [
        ("/pause", None, ("pause", PauseMode.ABORT, 60.0), {"status": "paused"}),
        (
            "/pause?mode=keep&timeout_s=2",
            None,
            ("pause", PauseMode.KEEP, 2.0),
            {"status": "paused"},
        ),
        ("/resume", None, ("resume",), {"status": "resumed"}),
        (
            "/sleep?level=2&mode=wait",
            None,
            ("sleep", 2, PauseMode.WAIT, 60.0),
            {"status": "sleeping", "level": 2},
        ),
        ("/wake_up", None, ("wake_up", "weights", "kv_cache"), {"status": "awake", "tags": None}),
        (
            "/wake_up?tags=weights",
            None,
            ("wake_up", "weights"),
            {"status": "awake", "tags": ["weights"]},
        ),
        ("/start_profile", None, ("start_profile", ""), {"status": "profiling"}),
        (
            "/start_profile",
            {"profile_prefix": "a"},
            ("start_profile", "a"),
            {"status": "profiling"},
        ),
    ],
)
async def test_a_door_passes_on_what_it_is_told(
    api: OpenAIApi, http: httpx.AsyncClient, door: str, body: Any, told: Any, answer: Any
) -> None:
    response = await http.post(door, json=body) if body else await http.post(door)
    assert (response.status_code, response.json()) == (200, answer)
    assert api.cluster.fleet.told == [told]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_update_takes_a_folder_and_tells_who_was_lost(
    api: OpenAIApi, http: httpx.AsyncClient, wrapped: bool
) -> None:
    body: dict[str, Any] = {"path": "/dev/shm/v1", "weight_version": "v1", "timeout_s": 5.0}
    response = await http.post("/update_weights", json={"update_info": body} if wrapped else body)
    assert response.json() == {
        "message": "Weights updated",
        "workers": {"decode-0": "v1"},
        "lost": {"decode-1": "lost"},
    }
    assert api.cluster.fleet.told == [("update_weights", "/dev/shm/v1", "v1", PauseMode.WAIT, 5.0)]


@pytest.mark.parametrize(
    ("door", "body", "param"),
    [
        ("/pause?mode=stop", None, "mode"),
        ("/pause?timeout_s=nan", None, "timeout_s"),
        ("/pause?clear_cache=perhaps", None, "clear_cache"),
        ("/sleep?level=0", None, "level"),
        ("/wake_up?tags=lora", None, "tags"),
        ("/update_weights", {"weight_version": "v1"}, "path"),
        ("/update_weights", {"path": "/a", "mode": "keep"}, "mode"),
        ("/update_weights", {"path": "/a", "names": ["w"]}, "names"),
        ("/start_profile", {"profile_prefix": 1}, "profile_prefix"),
    ],
)
async def test_what_a_door_does_not_understand_it_refuses_by_name(
    api: OpenAIApi, http: httpx.AsyncClient, door: str, body: Any, param: str
) -> None:
    response = await http.post(door, json=body) if body else await http.post(door)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert api.cluster.fleet.told == []


@pytest.mark.parametrize(
    ("query", "num_resets"),
    [("", 0), ("?clear_cache=false", 0), ("?clear_cache=true", 1), ("?mode=wait&clear_cache=1", 1),
     ("?mode=keep&clear_cache=true", 0)],
)  # fmt: skip
async def test_a_pause_clears_the_cache_if_told_so(
    api: OpenAIApi, http: httpx.AsyncClient, query: str, num_resets: int
) -> None:
    """Not that of requests that only stopped."""
    assert (await http.post(f"/pause{query}")).json() == {"status": "paused"}
    assert api.cluster.num_resets == num_resets


async def test_a_cache_that_is_in_use_is_no_secret(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.cluster.can_reset = False
    response = await http.post("/pause?clear_cache=true")
    assert response.status_code == 503
    assert "requests are paused" in response.json()["error"]["message"]


async def test_weights_in_a_request_are_refused_with_the_way_that_there_is(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    """As vLLM's trainers send them over IPC."""
    pushed = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]], "ipc_handles": []}
    response = await http.post("/update_weights", json={"update_info": pushed})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "names")
    assert "/dev/shm" in error["message"]
    assert api.cluster.fleet.told == []


async def test_a_change_that_a_worker_refuses_says_why(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.cluster.fleet.failure = UnavailableError("decode-0: it burns")
    response = await http.post("/pause")
    assert (response.status_code, response.json()["error"]["message"]) == (
        503,
        "decode-0: it burns",
    )


async def test_states_have_vllms_form(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    assert (await http.get("/is_paused")).json() == {"is_paused": True}
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await http.get("/weight_info")).json()["weight_version"] == "v1"
    api.cluster.fleet.serves = False
    assert (await http.get("/weight_info")).json() == {
        "weight_version": None,
        "workers": {"decode-0": "v1", "decode-1": "v2"},
    }


def test_all_doors_need_an_operator() -> None:
    assert set(LIFECYCLE_PATHS) <= OPERATOR_PATHS
