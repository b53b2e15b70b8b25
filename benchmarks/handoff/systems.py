"""The systems that are compared. Each is opened for one pass and closed after it."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import torch

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from cli.cluster import Cluster, ClusterSpec
from cli.start.ports import free_port
from shared.engine.engine import Engine
from shared.engine.sequence.events import NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.engine import EngineConfig
from shared.engine.thread.engine_thread import EngineThread
from shared.model.loader import load_model
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    Ask = Callable[[str, Sequence[int], int], AsyncIterator[int]]

NUM_BLOCKS = 2048


@asynccontextmanager
async def in_process(model: Path, chunk: int) -> AsyncIterator[Ask]:
    """One engine with all cores, asked without any transport."""
    torch.set_num_threads(os.cpu_count() or 1)
    loaded = load_model(model)
    engine = Engine(loaded, EngineConfig(num_blocks=NUM_BLOCKS, max_num_batched_tokens=chunk))
    thread = EngineThread(engine)
    await thread.start()

    async def ask(request_id: str, prompt: Sequence[int], output_len: int) -> AsyncIterator[int]:
        sampling = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=tuple(prompt), sampling=sampling
        )
        async for event in await thread.submit(request):
            if isinstance(event, NewTokens):
                yield len(event.token_ids)

    try:
        yield ask
    finally:
        await thread.stop()
        engine.close()


@asynccontextmanager
async def running_cluster(
    model: Path, chunk: int, connector: str, *flags: str
) -> AsyncIterator[router_pb2_grpc.RouterAsyncStub]:
    """A router, a prefill and a decode process with half of the cores each.

    `flags` are more of the workers'.
    """
    with Cluster(bench_spec(model, chunk, connector, *flags)) as cluster:
        cluster.start()
        cluster.wait_ready(lambda _: None)
        async with grpc.aio.insecure_channel(cluster.spec.directory) as channel:
            stub: router_pb2_grpc.RouterAsyncStub = router_pb2_grpc.RouterStub(channel)
            yield stub


def bench_spec(model: Path, chunk: int, connector: str, *flags: str) -> ClusterSpec:
    """Return a router, a prefill and a decode process; `flags` are more of the workers'."""
    spec = ClusterSpec(
        model=model,
        served_model_name="bench",
        log_folder=Path(".run/bench"),
        port=free_port(),
        grpc_port=free_port(),
        worker_flags=(
            "--num-blocks", str(NUM_BLOCKS),
            "--max-num-batched-tokens", str(chunk),
            "--connectors", connector,
            *flags,
        ),
    )  # fmt: skip
    spec.log_folder.mkdir(parents=True, exist_ok=True)
    return spec


@asynccontextmanager
async def disaggregated(model: Path, chunk: int, connector: str, *flags: str) -> AsyncIterator[Ask]:
    """A cluster asked over gRPC. `flags` are more of the workers'."""
    async with running_cluster(model, chunk, connector, *flags) as stub:

        async def ask(
            request_id: str, prompt: Sequence[int], output_len: int
        ) -> AsyncIterator[int]:
            request = router_pb2.GenerateRequest(
                request_id=request_id,
                prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
                params=router_pb2.GenerationParams(
                    max_tokens=output_len, temperature=0.0, ignore_eos=True
                ),
            )
            async for piece in stub.Generate(request, timeout=600):
                yield len(piece.token_ids)

        yield ask
