"""Hidden states behind an answer's tokens, over processes: those of transformers, by every door."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from baton_client import Baton
from baton_client import InvalidRequestError as Refused
from tests.e2e.asking import GREEDY, prompt_of
from tests.e2e.conftest import BLOCK_SIZE
from tests.fakes.model.hidden_states import BOUND, check_rows, rows_of_transformers

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.e2e.guarded import Guarded
    from tests.e2e.processes import Cluster

NUM_TOKENS = 9
WAIT_S = 60.0
ASKS = {"return_hidden_states": True}


@pytest.fixture(scope="module")
def transformers_model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def post(cluster: Cluster, path: str, **body: Any) -> Any:
    reply = httpx.post(f"{cluster.url}{path}", json=body, trust_env=False, timeout=WAIT_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def array(found: dict[str, Any]) -> NDArray[np.float32]:
    """As the documentation says that a client reads it."""
    assert found["dtype"] == "float32"
    return np.frombuffer(base64.b64decode(found["data"]), "<f4").reshape(found["shape"])


def test_rows_are_those_of_transformers(cluster: Cluster, transformers_model: Any) -> None:
    """Handed over, from the caches of both workers, and of several answers."""
    prompt = prompt_of(5 * BLOCK_SIZE + 3, seed=51)
    for turn in range(2):
        body = {"prompt": prompt, "n": 2, "temperature": 1.0, "seed": 3, "ignore_eos": True}
        found = post(
            cluster,
            "/v1/completions",
            **body,
            **ASKS,
            max_tokens=NUM_TOKENS,
            return_token_ids=True,
        )
        cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= 5 * BLOCK_SIZE * turn
        for choice in found["choices"]:
            want = rows_of_transformers(transformers_model, prompt, choice["token_ids"])
            assert choice["hidden_states"]["shape"] == [NUM_TOKENS, 96]
            np.testing.assert_allclose(array(choice["hidden_states"]), want, atol=BOUND)
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0.0}
    plain = post(cluster, "/v1/completions", **body)
    assert "hidden_states" not in plain["choices"][0]
    cluster.wait_idle()


def test_a_stream_has_the_rows_of_the_tokens_beside_them(
    cluster: Cluster, transformers_model: Any
) -> None:
    prompt = prompt_of(40, seed=52)
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "return_token_ids": True, "stream": True}
    tokens: list[int] = []
    parts: list[NDArray[np.float32]] = []
    with httpx.stream(
        "POST",
        f"{cluster.url}/v1/completions",
        json={**body, **GREEDY, **ASKS},
        trust_env=False,
        timeout=WAIT_S,
    ) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                tokens += choice["token_ids"]
                if choice["token_ids"]:
                    parts.append(array(choice["hidden_states"]))
                    assert len(parts[-1]) == len(choice["token_ids"])
                else:
                    assert choice["hidden_states"] is None
    want = rows_of_transformers(transformers_model, prompt, tokens)
    assert len(tokens) == NUM_TOKENS
    assert len(parts) > 1
    np.testing.assert_allclose(np.concatenate(parts), want, atol=BOUND)


def test_chats_and_tokens_have_them_as_well(cluster: Cluster, transformers_model: Any) -> None:
    chat = post(
        cluster,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "of the same words"}],
        max_tokens=NUM_TOKENS,
        return_token_ids=True,
        **GREEDY,
        **ASKS,
    )
    prompt = prompt_of(21, seed=53)
    sampling = {"max_tokens": NUM_TOKENS, **GREEDY, **ASKS}
    tokens = post(cluster, "/inference/v1/generate", token_ids=prompt, sampling_params=sampling)
    for ids, choice in (
        (chat["prompt_token_ids"], chat["choices"][0]),
        (prompt, tokens["choices"][0]),
    ):
        want = rows_of_transformers(transformers_model, ids, choice["token_ids"])
        np.testing.assert_allclose(array(choice["hidden_states"]), want, atol=BOUND)


def test_the_sdk_gives_an_array(cluster: Cluster, transformers_model: Any) -> None:
    prompt = prompt_of(33, seed=54)
    with Baton(f"127.0.0.1:{cluster.grpc_port}") as client:
        found = client.generate(
            prompt, max_tokens=NUM_TOKENS, n=1, best_of=2, temperature=1.0, ignore_eos=True, **ASKS
        )
        [answer] = found.answers
        want = rows_of_transformers(transformers_model, prompt, answer.token_ids)
        assert answer.hidden_states.shape == (NUM_TOKENS, 96)
        np.testing.assert_allclose(np.asarray(answer.hidden_states), want, atol=BOUND)
        check_rows(answer.hidden_states.rows, want)
        assert not client.generate(prompt, max_tokens=2).answers[0].hidden_states
        with pytest.raises(Refused, match="beam search") as caught:
            client.generate(prompt, max_tokens=2, use_beam_search=True, n=2, **ASKS)
    assert caught.value.param == "return_hidden_states"


def test_what_could_be_too_much_is_refused_before_any_work(cluster: Cluster) -> None:
    """By the router, which counts all answers to a prompt."""
    body = {"prompt": "a", "max_tokens": 1500, "n": 128}
    reply = httpx.post(
        f"{cluster.url}/v1/completions", json={**body, **ASKS}, trust_env=False, timeout=WAIT_S
    )
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "return_hidden_states")
    assert f"set max_tokens to at most {2**26 // (96 * 4 * 128)}" in error["message"]


def test_they_are_refused_unless_they_are_allowed(guarded: Guarded) -> None:
    reply = httpx.post(
        f"{guarded.cluster.url}/v1/completions",
        json={"prompt": "a", "max_tokens": 2, **ASKS},
        headers={"authorization": f"Bearer {guarded.disk.keys['a']}"},
        trust_env=False,
        timeout=WAIT_S,
    )
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "return_hidden_states")
    assert "--enable-return-hidden-states" in error["message"]
