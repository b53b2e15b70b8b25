"""I1 and I16 with the connector `nixl`: UCX over loopback, the sender writes into our blocks."""

from __future__ import annotations

import urllib.request
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS, MAX_NUM_BATCHED_TOKENS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

pytestmark = pytest.mark.skipif(find_spec("nixl") is None, reason="the extra `nixl` is missing")
METRICS_PORT = free_port()


@pytest.fixture(scope="module")
def cluster(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One router, one prefill and one decode worker that only know `nixl`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_NET_DEVICES", "lo")
        cluster = Cluster(checkpoint, tmp_path_factory.mktemp("cluster-nixl"))
        try:
            flags = (*ENGINE_FLAGS, "--connectors", "nixl")
            cluster.add_worker("prefill", "prefill-0", *flags)
            cluster.add_worker(
                "decode",
                "decode-0",
                *(*flags, "--local-prefill-threshold", "0"),
                *("--metrics-port", str(METRICS_PORT)),
            )
            cluster.wait_ready()
            yield cluster
        finally:
            codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.mark.parametrize("length", [BLOCK_SIZE, BLOCK_SIZE + 1, 3 * MAX_NUM_BATCHED_TOKENS + 5])
def test_greedy_answers_are_equal(cluster: Cluster, oracle: LLM, length: int) -> None:
    prompt = prompt_of(length)
    reply = ask(cluster, prompt, max_tokens=24, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=24, temperature=0.0)
    assert reply.timings.connector == "nixl"
    cluster.wait_idle()


def test_answers_are_equal_after_prefix_hits(cluster: Cluster, oracle: LLM) -> None:
    shared = 4 * BLOCK_SIZE
    start = prompt_of(shared, seed=shared)
    ask(cluster, [*start, 5], max_tokens=2, temperature=0.0, ignore_eos=True)
    prompt = [*start, *prompt_of(50, seed=shared + 1)]
    reply = ask(cluster, prompt, max_tokens=24, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=24, temperature=0.0)
    assert reply.usage.sources.local_hit == shared
    cluster.wait_idle()


def test_the_worker_counts_what_has_come_and_that_nothing_was_copied(cluster: Cluster) -> None:
    ask(cluster, prompt_of(100, seed=12), max_tokens=2, temperature=0.0, ignore_eos=True)
    url = f"http://127.0.0.1:{METRICS_PORT}/metrics"
    with urllib.request.urlopen(url, timeout=5) as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines())
    inbound = '{connector="nixl",direction="inbound"}'
    assert float(lines[f"baton_kv_transfer_bytes_total{inbound}"]) > 0
    assert float(lines[f"baton_kv_transfer_pieces_total{inbound}"]) > 0
    assert float(lines[f"baton_kv_transfer_copied_bytes_total{inbound}"]) == 0
