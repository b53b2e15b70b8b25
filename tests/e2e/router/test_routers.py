"""Several routers on one pair of ports, as real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest

from baton.v1 import router_pb2, router_pb2_grpc
from baton_client import Baton
from cli.cluster import ClusterSpec
from cli.start.ports import free_port, is_free
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.reliability.test_replay import ASKED, NUM_BEFORE, until
from tests.e2e.stream import NUM_TOKENS, WAIT_S, Stream, check
from tests.fakes.processes.warm_cluster import WarmCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_REQUESTS = 24


@pytest.fixture(scope="module")
def routers(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCluster]:
    """Two of them, with a prefill and a decode worker that both know.

    Each test kills the first one, and the last test leaves it so.
    """
    spec = ClusterSpec(
        model=checkpoint,
        served_model_name="tiny",
        log_folder=tmp_path_factory.mktemp("routers"),
        port=free_port(),
        grpc_port=free_port(),
        num_routers=2,
        worker_flags=ENGINE_FLAGS,
        router_flags=("--placement", "disaggregated"),
    )
    with WarmCluster(spec) as cluster:
        cluster.start()
        cluster.wait_ready(lambda _: None)
        yield cluster
    assert cluster.killed == []
    assert is_free("127.0.0.1", spec.port)
    assert is_free("127.0.0.1", spec.grpc_port)


def ask_http(cluster: WarmCluster) -> str:
    """One request on a connection of its own, which the system gives to any router."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "temperature": 0}
    with httpx.Client(trust_env=False, verify=False) as http:
        reply = http.post(f"{cluster.spec.url}/v1/completions", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def ask_grpc(cluster: WarmCluster, number: int, request_id: str = "") -> str:
    # Channels with equal options share their connection.
    options = [("grpc.enable_http_proxy", 0), ("grpc.primary_user_agent", f"client-{number}")]
    with grpc.insecure_channel(cluster.spec.directory, options=options) as channel:
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(text="hello"),
            params=router_pb2.GenerationParams(max_tokens=3, temperature=0),
            request_id=request_id,
        )
        pieces = router_pb2_grpc.RouterStub(channel).Generate(request, timeout=30)
        return "".join(piece.text for piece in pieces)


def num_answered(port: int) -> int:
    """Of one router, by its own metrics."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, verify=False).text
    found = re.findall(r"^baton_request_success_total{[^}]*} ([\d.]+)$", text, re.MULTILINE)
    return sum(int(float(number)) for number in found)


def answered_by_each(cluster: WarmCluster) -> list[int]:
    return [num_answered(port) for port, _ in cluster.router_ports]


def test_both_routers_answer_on_one_port_and_one_of_them_suffices(routers: WarmCluster) -> None:
    texts = {ask_http(routers) for _ in range(NUM_REQUESTS)}
    after_http = answered_by_each(routers)
    assert sum(after_http) == NUM_REQUESTS
    assert min(after_http) > 0
    texts |= {ask_grpc(routers, number, "same") for number in range(NUM_REQUESTS)}
    by_grpc = [n - old for n, old in zip(answered_by_each(routers), after_http, strict=True)]
    assert sum(by_grpc) == NUM_REQUESTS
    assert min(by_grpc) > 0
    assert len(texts) == 1

    first = routers.routers[0]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(10)
    assert {ask_http(routers) for _ in range(NUM_REQUESTS)} == texts
    assert {ask_grpc(routers, number) for number in range(NUM_REQUESTS)} == texts

    # `baton up` starts it again, and it serves once the workers have joined it again.
    said: list[str] = []
    routers.keep_running(said.append)
    [line] = said
    assert line.startswith("router-0 was killed by SIGKILL; it is restarted")
    own_port = routers.router_ports[0][0]
    while not is_healthy(own_port):
        routers.require_running()
        time.sleep(0.05)
    assert {ask_http(routers) for _ in range(NUM_REQUESTS)} == texts
    assert num_answered(own_port) > 0


def is_healthy(port: int) -> bool:
    try:
        reply = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, verify=False)
    except httpx.ConnectError:
        return False
    return reply.status_code == 200


def test_a_request_outlives_its_router(routers: WarmCluster, oracle: LLM) -> None:
    """The SDK goes on at the other router with what it has."""
    params = [ASKED["greedy"], {"temperature": 1.0, "seed": 6, "n": 2}, ASKED["penalties"]]
    streams = [Stream(str(i), prompt_of(40 + i, seed=80 + i), p) for i, p in enumerate(params)]
    addresses = [f"127.0.0.1:{port}" for _, port in routers.router_ports]
    with Baton(addresses) as baton:
        for stream in streams:
            stream.start(read_with_sdk(baton))
        until(lambda: all(s.num_seen >= NUM_BEFORE or s.error for s in streams), "all have begun")
        first = routers.routers[0]
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        for stream in streams:
            assert stream.thread is not None
            stream.thread.join(WAIT_S)
            check(oracle, stream)


def read_with_sdk(baton: Baton) -> Callable[[Stream], None]:
    def read(stream: Stream) -> None:
        params = {"ignore_eos": True, "max_tokens": NUM_TOKENS, **stream.params}
        with baton.stream_generate(stream.prompt, **params) as pieces:
            for piece in pieces:
                index = piece.index
                stream.texts[index] = stream.texts.get(index, "") + piece.text
                stream.token_ids.setdefault(index, []).extend(piece.token_ids)
                stream.num_seen = min(map(len, stream.token_ids.values()))

    return read
