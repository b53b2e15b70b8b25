"""A gRPC client that asks and never reads: the router takes its place back."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.v1 import router_pb2, router_pb2_grpc
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Far more bytes than a connection takes from a sender whose receiver does not read.
NUM_TOKENS = 1500
#: A window that stays as small as gRPC's first one: it is full after some tokens.
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 65_535), ("grpc.http2.bdp_probe", 0))
NUM_ALTERNATIVES = 20
NUM_ANSWERS = 8


@pytest.fixture
def cluster(checkpoint: Path, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(checkpoint, tmp_path, router_flags=("--max-client-stall-s", "1"))
    try:
        made.add_worker("decode", "decode-0", *ENGINE_FLAGS)
        made.wait_ready(num_prefill=0)
        yield made
    finally:
        made.stop()


def running(cluster: Cluster) -> float:
    """Requests that have a place in the router."""
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return next(f.samples[0].value for f in families if f.name == "baton_num_requests_running")


def wait_for(cluster: Cluster, num_running: int) -> None:
    deadline_s = time.monotonic() + 30
    while running(cluster) != num_running:
        assert time.monotonic() < deadline_s, f"{running(cluster)} requests are running"
        time.sleep(0.05)


def test_who_never_reads_loses_its_place_and_is_told(cluster: Cluster) -> None:
    request = router_pb2.GenerateRequest(
        prompt={"tokens": {"ids": [5, 6, 7]}},
        params={
            "max_tokens": NUM_TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": NUM_ALTERNATIVES,
            "n": NUM_ANSWERS,
        },
    )
    channel = grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}", options=SMALL_WINDOW)
    call = router_pb2_grpc.RouterStub(channel).Generate(request, timeout=120)
    wait_for(cluster, 1)
    wait_for(cluster, 0)
    cluster.wait_idle()
    with pytest.raises(grpc.RpcError) as failure:
        list(call)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the client read nothing" in failure.value.details()
    channel.close()
