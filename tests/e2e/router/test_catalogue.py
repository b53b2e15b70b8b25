"""Two models behind one router, as real processes with prefill and decode workers each."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from cli.cluster import ClusterSpec
from cli.start.cluster_file import ClusterModel
from cli.start.ports import free_port, is_free
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.reliability.test_replay import until
from tests.e2e.stream import WAIT_S
from tests.fakes.processes.warm_cluster import WarmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NUM_TOKENS = 8
FIRST, SECOND = "org/tiny", "other"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other sizes, and another vocabulary: 4 heads over 1 KV head of 48."""
    path = tmp_path_factory.mktemp("models") / "second"
    spec = CheckpointSpec(
        architecture="llama",
        num_layers=3,
        hidden_size=80,
        num_heads=4,
        num_kv_heads=1,
        head_dim=48,
        intermediate_size=112,
        vocab_size=299,
        max_position_embeddings=512,
        dtype="float32",
        seed=11,
    )
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="module")
def cluster(
    checkpoint: Path, second: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WarmCluster]:
    decode_flags = ("--local-prefill-threshold", "0")
    spec = ClusterSpec(
        models=(
            ClusterModel(name=FIRST, path=checkpoint, aliases=("t",), decode_flags=decode_flags),
            ClusterModel(name=SECOND, path=second, decode_flags=decode_flags),
        ),
        log_folder=tmp_path_factory.mktemp("catalogue"),
        port=free_port(),
        grpc_port=free_port(),
        worker_flags=ENGINE_FLAGS,
        # Requests wait for workers that sleep, too.
        router_flags=("--placement", "disaggregated", "--max-queue-s", "3"),
    )
    with WarmCluster(spec) as made:
        made.start()
        made.wait_ready(lambda _: None)
        yield made
    assert made.killed == []
    assert is_free("127.0.0.1", spec.port)


def ask(cluster: WarmCluster, model: str, prompt: Sequence[int]) -> router_pb2.GenerateResponse:
    """The answer in one message."""
    with grpc.insecure_channel(
        cluster.spec.directory, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        request = router_pb2.GenerateRequest(
            model=model,
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
            params=router_pb2.GenerationParams(
                max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True
            ),
        )
        stub = router_pb2_grpc.RouterStub(channel)
        whole = router_pb2.GenerateResponse()
        for piece in stub.Generate(request, timeout=30):
            whole.MergeFrom(piece)
        return whole


def of_transformers(path: Path, prompt: Sequence[int]) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([list(prompt)]), do_sample=False, max_new_tokens=NUM_TOKENS
        )
    return [int(token) for token in found[0, len(prompt) :]]


def http(cluster: WarmCluster, method: str, path: str, **fields: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=False, timeout=30) as client:
        return client.request(method, f"{cluster.spec.url}{path}", **fields)


def complete(cluster: WarmCluster, model: str) -> httpx.Response:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 2}
    return http(cluster, "POST", "/v1/completions", json=body)


def test_each_model_s_own_workers_give_its_tokens(
    cluster: WarmCluster, checkpoint: Path, second: Path
) -> None:
    prompt = prompt_of(50, seed=3)
    for name, path, workers in (
        (FIRST, checkpoint, "org-tiny"),
        (SECOND, second, "other"),
        ("t", checkpoint, "org-tiny"),
    ):
        answer = ask(cluster, name, prompt)
        assert list(answer.token_ids) == of_transformers(path, prompt)
        assert answer.timings.prefill_worker == f"{workers}-prefill-0"
        assert answer.timings.decode_worker == f"{workers}-decode-0"
    # The same tokens again under one model alone are in its own cache.
    answer = ask(cluster, SECOND, prompt)
    assert answer.usage.cached_tokens > 0
    listed = http(cluster, "GET", "/v1/models").json()["data"]
    assert [(card["id"], card["root"], card["max_model_len"]) for card in listed] == [
        (FIRST, FIRST, 2048), ("t", FIRST, 2048), (SECOND, SECOND, 512),
    ]  # fmt: skip
    assert complete(cluster, "third").status_code == 404


def test_a_model_is_put_to_sleep_while_the_other_serves(cluster: WarmCluster) -> None:
    before = ask(cluster, SECOND, [5, 6, 7]).token_ids
    named = {"params": {"model": SECOND}}
    asked = {"model": SECOND, "level": "1", "mode": "wait"}
    assert http(cluster, "POST", "/sleep", params=asked).status_code == 200
    assert http(cluster, "GET", "/is_sleeping", **named).json() == {"is_sleeping": True}
    other = http(cluster, "GET", "/is_sleeping", params={"model": FIRST}).json()
    assert other == {"is_sleeping": False}
    assert complete(cluster, SECOND).status_code == 503
    assert complete(cluster, FIRST).status_code == 200
    assert http(cluster, "POST", "/wake_up", **named).status_code == 200
    assert ask(cluster, SECOND, [5, 6, 7]).token_ids == before


def test_the_loss_of_one_model_s_workers_is_no_loss_of_the_other(cluster: WarmCluster) -> None:
    before = ask(cluster, SECOND, [5, 6, 7]).token_ids
    workers = {worker.name: worker for worker in cluster.workers}
    lost = [workers["other-decode-0"], workers["other-prefill-0"]]
    for worker in lost:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait(WAIT_S)
        if worker is lost[0]:
            # The model's other worker goes on, in both roles.
            assert ask(cluster, SECOND, [5, 6, 7]).token_ids == before
    assert complete(cluster, SECOND).status_code == 503
    assert complete(cluster, FIRST).status_code == 200
    for worker in lost:
        worker.start()
    until(lambda: complete(cluster, SECOND).status_code == 200, "the worker is back")
    assert ask(cluster, SECOND, [5, 6, 7]).token_ids == before
