"""An order changes the roles of two workers while an answer runs: only its route tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.e2e.asking import Asking, ask, prompt_of, until
from tests.e2e.conftest import BLOCK_SIZE
from tests.e2e.one_cluster import one_cluster
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

pytestmark = one_cluster
GREEDY = {"temperature": 0.0, "ignore_eos": True}
NUM_LONG = 400


def prefer(cluster: Cluster, worker: str, role: str) -> None:
    order = {"worker": worker, "role": role}
    reply = httpx.post(f"{cluster.url}/v1/workers/prefer", json=order, timeout=30)
    assert reply.status_code == 200, reply.text
    assert reply.json().items() >= order.items()


def change_places(cluster: Cluster, *roles: str) -> None:
    for worker, role in zip(("prefill-0", "decode-0"), roles, strict=True):
        prefer(cluster, worker, role)


@pytest.fixture
def own_roles(cluster: Cluster) -> Iterator[None]:
    """The other tests of the cluster get it as it was."""
    yield
    change_places(cluster, "prefill", "decode")


@pytest.mark.usefixtures("own_roles")
def test_a_change_of_roles_loses_no_answer_no_token_and_no_block(
    cluster: Cluster, oracle: LLM
) -> None:
    old = prompt_of(4 * BLOCK_SIZE, seed=401)
    before = ask(cluster, old, max_tokens=4, **GREEDY)
    assert before.timings.prefill_worker == "prefill-0"
    long = prompt_of(3 * BLOCK_SIZE + 5, seed=402)
    running = Asking(cluster, long, NUM_LONG)
    until(lambda: cluster.load("decode-0").num_running == 1)
    change_places(cluster, "decode", "prefill")
    assert cluster.router_metric("baton_workers_ready", role="decode") == 1
    new = prompt_of(5 * BLOCK_SIZE + 3, seed=403)
    during = ask(cluster, new, max_tokens=12, **GREEDY)
    assert during.token_ids == expect(oracle, new, max_tokens=12, temperature=0.0)
    assert during.timings.prefill_worker == "decode-0"
    assert cluster.load("decode-0").num_running == 1, "the answer from before is there yet"
    # Both have the blocks from before: it is handed over from a cache, to a cache.
    again = ask(cluster, [*old, 7], max_tokens=4, **GREEDY)
    assert again.usage.sources.local_hit == 4 * BLOCK_SIZE
    answer = running.result()
    assert answer.token_ids == expect(oracle, long, max_tokens=NUM_LONG, temperature=0.0)
    assert answer.usage.num_replays == 0
    cluster.wait_idle()


@pytest.mark.usefixtures("own_roles")
def test_workers_of_one_role_answer_alone(cluster: Cluster, oracle: LLM) -> None:
    for role in ("prefill", "decode"):
        change_places(cluster, role, role)
        notes = httpx.get(f"{cluster.url}/ready").json()["notes"]
        assert len(notes) == 1
        prompt = prompt_of(2 * BLOCK_SIZE + 1, seed=404)
        reply = ask(cluster, prompt, max_tokens=8, **GREEDY)
        assert reply.token_ids == expect(oracle, prompt, max_tokens=8, temperature=0.0)
        assert reply.timings.prefill_worker == ""
    reply = httpx.post(
        f"{cluster.url}/v1/workers/prefer", json={"worker": "prefill-9", "role": "decode"}
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "worker")
    cluster.wait_idle()
