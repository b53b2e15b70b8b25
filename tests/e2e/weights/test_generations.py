"""Workers with other weights, by mistake and on purpose: no block crosses, no answer is mixed."""

from __future__ import annotations

import shutil
import signal
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import (
    common_pb2,
    router_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from cli.doctor.cluster import check_cluster
from cli.doctor.finding import Level
from shared.engine.llm import LLM
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import ENGINE_FLAGS, add_decode
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.processes import Cluster

NUM_TOKENS = 200
LOAD_TOKENS = 24
NUM_CLIENTS = 3


@pytest.fixture(scope="module")
def nearly(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint but for one bit of its last byte."""
    path = tmp_path_factory.mktemp("nearly") / checkpoint.name
    shutil.copytree(checkpoint, path)
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same shape."""
    path = tmp_path_factory.mktemp("other") / "tiny"
    spec = CheckpointSpec(
        architecture="qwen3", num_layers=2, hidden_size=96, num_heads=6, num_kv_heads=2,
        head_dim=80, intermediate_size=160, vocab_size=321, max_position_embeddings=2048,
        dtype="float32", seed=8,
    )  # fmt: skip
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="module")
def other_oracle(other: Path) -> Iterator[LLM]:
    llm = LLM(other, block_size=16, num_blocks=256, dtype="float32", num_threads=1)
    yield llm
    llm.close()


def wait_refused(cluster: Cluster, role: str) -> None:
    cluster.wait_metric("baton_workers_refused", 1, role=role)


def test_no_block_crosses_between_weights_that_differ_in_one_byte(
    bare_cluster: Cluster, oracle: LLM, nearly: Path
) -> None:
    cluster = bare_cluster
    add_decode(cluster)
    cluster.wait_ready(num_prefill=0)
    cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, model=nearly)
    wait_refused(cluster, "prefill")
    prompt = prompt_of(80, seed=24)
    reply = ask(cluster, prompt, max_tokens=10, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=10, temperature=0.0)
    assert (reply.usage.sources.computed, reply.usage.sources.transferred) == (80, 0)
    assert "model_fingerprint" in _handshake(cluster, "decode-0", "prefill-0")
    found = check_cluster(url=cluster.url, directory=f"127.0.0.1:{cluster.grpc_port}")
    (refused,) = [
        one for one in found or () if one.subject == "prefill-0" and one.level is Level.FAIL
    ]
    assert "not those of generation 0" in refused.text


def _handshake(cluster: Cluster, ours: str, theirs: str) -> str:
    """What the one says when the other would exchange blocks with it."""
    with (
        grpc.insecure_channel(cluster.addresses[ours]) as here,
        grpc.insecure_channel(cluster.addresses[theirs]) as there,
    ):
        info = worker_pb2_grpc.WorkerStub(here).GetInfo(worker_pb2.GetInfoRequest(), timeout=5)
        request = transfer_pb2.HandshakeRequest(peer=info.peer)
        with pytest.raises(grpc.RpcError) as refusal:
            transfer_pb2_grpc.TransferStub(there).Handshake(request, timeout=5)
    assert isinstance(refusal.value, grpc.Call)
    return str(refusal.value.details())


def test_an_answer_ends_rather_than_go_on_with_other_weights(
    bare_cluster: Cluster, oracle: LLM, other: Path
) -> None:
    cluster = bare_cluster
    add_decode(cluster, "decode-0")
    cluster.wait_ready(num_prefill=0)
    add_decode(cluster, "decode-1", model=other)
    wait_refused(cluster, "decode")
    prompt = prompt_of(40, seed=3)
    expected = expect(oracle, prompt, max_tokens=NUM_TOKENS, temperature=0.0)
    call = cluster.router_stub().Generate(_request(prompt, NUM_TOKENS), timeout=60)
    token_ids: list[int] = []
    while len(token_ids) < 12:
        token_ids += next(call).token_ids
    cluster.workers["decode-0"].kill()
    with pytest.raises(grpc.RpcError) as failure:
        token_ids += [token_id for piece in call for token_id in _kept(piece, token_ids)]
    assert failure.value is call
    assert call.code() is grpc.StatusCode.UNAVAILABLE
    assert "cannot go on" in call.details()
    assert "generation 0, identity" in call.details()
    assert tuple(token_ids) == expected[: len(token_ids)]
    assert 12 <= len(token_ids) < NUM_TOKENS
    # Nothing new is given to the other one either, though it has been there for longer now.
    cluster.workers["decode-0"].start()
    cluster.wait_ready(num_prefill=0)
    short = expect(oracle, prompt, max_tokens=10, temperature=0.0)
    assert ask(cluster, prompt, max_tokens=10, temperature=0.0, ignore_eos=True).token_ids == short
    # Nor by a router that has seen nothing of all this.
    cluster.router.stop()
    cluster.router.start()
    cluster.wait_ready(num_prefill=0)
    wait_refused(cluster, "decode")
    assert ask(cluster, prompt, max_tokens=10, temperature=0.0, ignore_eos=True).token_ids == short


def _kept(piece: router_pb2.GenerateResponse, token_ids: list[int]) -> list[int]:
    """Its tokens, noted at once: the answer ends with an error."""
    token_ids += piece.token_ids
    return []


def _request(prompt: list[int], max_tokens: int) -> router_pb2.GenerateRequest:
    return router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
        params=router_pb2.GenerationParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
    )


class Load:
    """Clients that ask one thing after the other, each for itself, until told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self.answers: list[tuple[int, tuple[int, ...]]] = []
        self.errors: list[Exception] = []
        self._cluster = cluster
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(NUM_CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._stopping.is_set():
            try:
                reply = ask(
                    self._cluster, prompt(number), max_tokens=LOAD_TOKENS, temperature=0.0,
                    ignore_eos=True,
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001 the test looks at all of them
                self.errors.append(error)
                return
            self.answers.append((number, reply.token_ids))

    def wait_for_more(self, count: int) -> None:
        """Until so many more answers have come."""
        done = threading.Event()
        wanted = len(self.answers) + count
        while len(self.answers) < wanted and not self.errors:
            done.wait(0.01)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def prompt(number: int) -> list[int]:
    return prompt_of(50 + number, seed=number)


def test_a_rolling_update_of_both_roles_under_load(
    bare_cluster: Cluster, oracle: LLM, other: Path, other_oracle: LLM
) -> None:
    """No request fails, and every answer is one model's from the first token to the last."""
    cluster = bare_cluster
    old = {number: _expected(oracle, number) for number in range(NUM_CLIENTS)}
    new = {number: _expected(other_oracle, number) for number in range(NUM_CLIENTS)}
    assert all(old[number] != new[number] for number in range(NUM_CLIENTS))
    cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
    add_decode(cluster, "decode-0")
    cluster.wait_ready()
    load = Load(cluster)
    try:
        load.wait_for_more(NUM_CLIENTS)
        cluster.add_worker(
            "prefill", "prefill-1", *ENGINE_FLAGS, "--model-generation", "1", model=other
        )
        add_decode(cluster, "decode-1", "--model-generation", "1", model=other)
        cluster.wait_ready(num_prefill=2, num_decode=2)
        load.wait_for_more(2 * NUM_CLIENTS)
        for name in ("prefill-0", "decode-0"):
            cluster.workers[name].popen.send_signal(signal.SIGTERM)
        for name in ("prefill-0", "decode-0"):
            assert cluster.workers.pop(name).popen.wait(60) == 0
        load.wait_for_more(2 * NUM_CLIENTS)
    finally:
        load.stop()
    assert not load.errors
    assert all(answer in (old[number], new[number]) for number, answer in load.answers)
    assert load.answers[0][1] == old[load.answers[0][0]]
    last = load.answers[-NUM_CLIENTS:]
    assert all(answer == new[number] for number, answer in last)


def _expected(oracle: LLM, number: int) -> tuple[int, ...]:
    return expect(oracle, prompt(number), max_tokens=LOAD_TOKENS, temperature=0.0)
