"""Asks a cluster over gRPC, and the in-process engine the same."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.e2e.processes import Cluster

TIMEOUT_S = 60.0
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the cluster, put together from its pieces."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: int
    details: tuple[router_pb2.TokenDetail, ...]
    usage: common_pb2.Usage
    timings: common_pb2.Timings
    num_pieces: int


def prompt_of(length: int, seed: int = 0, vocab_size: int = 300) -> list[int]:
    """A random prompt."""
    rng = random.Random(f"{seed}-{length}")
    return [rng.randrange(3, vocab_size) for _ in range(length)]


def ask(
    cluster: Cluster,
    prompt: Iterable[int] | common_pb2.EmbeddingRows,
    *,
    model: str = "",
    **params: object,
) -> Reply:
    """One answer. `model`: its name, or an adapter's; empty: the only model."""
    return ask_many(cluster, prompt, model=model, **params)[0]


def ask_many(
    cluster: Cluster,
    prompt: Iterable[int] | common_pb2.EmbeddingRows,
    *,
    model: str = "",
    **params: object,
) -> list[Reply]:
    """All `n` answers, by index."""
    if isinstance(prompt, common_pb2.EmbeddingRows):
        content = router_pb2.Prompt(embeds=prompt)
    else:
        content = router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt))
    request = router_pb2.GenerateRequest(
        model=model,
        prompt=content,
        params=router_pb2.GenerationParams(**params),  # type: ignore[arg-type]
    )
    pieces = list(cluster.router_stub().Generate(request, timeout=TIMEOUT_S))
    last = pieces[-1]
    replies = []
    for index in range(request.params.n or 1):
        own = [piece for piece in pieces if piece.index == index]
        replies.append(
            Reply(
                token_ids=tuple(token for piece in own for token in piece.token_ids),
                text="".join(piece.text for piece in own),
                finish_reason=max(piece.finish_reason for piece in own),
                details=tuple(detail for piece in own for detail in piece.details),
                usage=last.usage,
                timings=last.timings,
                num_pieces=len(own),
            )
        )
    return replies


class Asking:
    """A greedy request under way in a thread."""

    def __init__(self, cluster: Cluster, prompt: list[int], max_tokens: int) -> None:
        self._reply: Reply | None = None
        self._error: grpc.RpcError | None = None

        def run() -> None:
            try:
                self._reply = ask(cluster, prompt, max_tokens=max_tokens, **GREEDY)
            except grpc.RpcError as error:
                self._error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def result(self) -> Reply:
        """The answer; fails if there is none."""
        self._thread.join(90)
        assert self._reply is not None, self._error
        return self._reply


def until(condition: Callable[[], bool]) -> None:
    """Fail unless it becomes true in time."""
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.01)


def shake_hands(cluster: Cluster, asked: str) -> grpc.Call:
    """What a worker says to the greeting of `decode-0`, which it refuses."""
    with grpc.insecure_channel(cluster.addresses["decode-0"]) as channel:
        worker = worker_pb2_grpc.WorkerStub(channel)
        peer = worker.GetInfo(worker_pb2.GetInfoRequest(), timeout=10).peer
    with grpc.insecure_channel(cluster.addresses[asked]) as channel:
        stub = transfer_pb2_grpc.TransferStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Handshake(transfer_pb2.HandshakeRequest(peer=peer), timeout=10)
    assert isinstance(refused.value, grpc.Call)
    return refused.value
