"""A real worker inside the test's process: engine, connectors and gRPC services, no directory."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from services.decode.config import DecodeSettings
from services.worker.config import WorkerProgramConfig
from services.worker.parts import add_services
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.model import ModelSettings
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.identity import Role
from shared.kv.identity import KVIdentity
from shared.rpc.server import RpcServer
from shared.rpc.service_switch import ServiceSet, ServiceSwitch
from shared.rpc.wire import worker_id_to_wire
from shared.text.token_table import read_token_table
from shared.worker.adapters import open_adapters
from shared.worker.config import WorkerConfig
from shared.worker.lifecycle.weights import first_source, load_weights
from shared.worker.parts import open_parts
from shared.worker.peers.transfer_servicer import TransferServicer
from shared.worker.reuse_settings import ReusePolicy, ReuseSettings
from shared.worker.roles import Preference
from shared.worker.worker_servicer import WorkerServicer
from tests.fakes.ranks.scattered import adopt, scattered_engines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from shared.engine.engine import Engine
    from shared.worker.parts import WorkerParts

BLOCK_SIZE = 16
MAX_NUM_BATCHED_TOKENS = 64
USUAL = {"block_size": BLOCK_SIZE, "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS}
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer with what it cost."""

    token_ids: tuple[int, ...]
    usage: common_pb2.Usage
    timings: common_pb2.Timings

    @property
    def sources(self) -> tuple[int, int, int]:
        """Tokens computed, found here, and fetched from a peer; they must be the prompt (I16)."""
        sources = self.usage.sources
        total = sources.computed + sources.local_hit + sources.transferred
        assert total == self.usage.prompt_tokens
        assert sources.transferred == sources.transferred_hit == sources.fetched
        assert self.usage.cached_tokens == sources.local_hit + sources.fetched
        return sources.computed, sources.local_hit, sources.fetched


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A decode worker that computes its prompts by itself, unless it is told who does."""

    parts: WorkerParts
    address: str

    def source(self, num_blocks: int) -> common_pb2.PrefixSource:
        """Claims that this worker holds so many blocks."""
        return common_pb2.PrefixSource(
            worker=worker_id_to_wire(self.parts.worker),
            address=self.address,
            num_blocks=num_blocks,
        )

    def candidate(self) -> decode_pb2.PrefillCandidate:
        """Names this worker as one that computes prompts."""
        return decode_pb2.PrefillCandidate(
            worker=worker_id_to_wire(self.parts.worker), address=self.address
        )

    async def ask(
        self, prompt: Sequence[int], *sources: common_pb2.PrefixSource, **options: Any
    ) -> Reply:
        """One greedy answer; for `options` see `pieces`."""
        pieces = [piece async for piece in self.pieces(prompt, *sources, **options)]
        return Reply(
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            usage=pieces[-1].usage,
            timings=pieces[-1].timings,
        )

    async def pieces(
        self,
        prompt: Sequence[int],
        *sources: common_pb2.PrefixSource,
        max_tokens: int = 8,
        cache_salt: bytes = b"",
        request_id: str = "r",
        resumed: Sequence[int] = (),
        prefill: LiveWorker | Sequence[LiveWorker] | None = None,
        adapter: common_pb2.Adapter | None = None,
        max_itl_ms: float = 0.0,
        num_handed_tokens: int = 0,
        **sampling: Any,
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """One answer as it comes, greedy unless `sampling` says more; `prefill` computes the
        prompt.
        """
        workers = [prefill] if isinstance(prefill, LiveWorker) else prefill or ()
        candidates = [worker.candidate() for worker in workers]
        request = decode_pb2.DecodeRequest(
            request_id=request_id,
            token_ids=[*prompt, *resumed],
            num_resumed_tokens=len(resumed),
            sampling=common_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling),
            prefix_sources=sources,
            prefill_candidates=candidates,
            cache_salt=cache_salt,
            adapter=adapter,
            max_itl_ms=max_itl_ms,
            num_handed_tokens=num_handed_tokens,
        )
        stub: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(
            self.parts.channels.get(self.address)
        )
        call = stub.Generate(request, timeout=TIMEOUT_S)
        try:
            async for piece in call:
                yield piece
        finally:
            # A reader that is cancelled just when its first message comes does not cancel the call.
            call.cancel()

    @property
    def orders(self) -> worker_pb2_grpc.WorkerAsyncStub:
        """Its Worker service."""
        return worker_pb2_grpc.WorkerStub(self.parts.channels.get(self.address))

    async def load(self) -> worker_pb2.GetLoadResponse:
        """What it holds now."""
        return await self.orders.GetLoad(worker_pb2.GetLoadRequest(), timeout=TIMEOUT_S)

    def hashes(self, prompt: Sequence[int]) -> list[bytes]:
        """Of the prompt's full blocks."""
        namespace = bytes.fromhex(self.parts.peer_info.namespace)
        return KVIdentity(namespace).hash_blocks(prompt, self.parts.layout.block_size)

    async def cached_bytes(self, prompt: Sequence[int]) -> np.ndarray:
        """The bytes of the prompt's leading blocks that are in the cache [blocks, block bytes]."""
        hashes = self.hashes(prompt)

        def read(engine: Engine) -> np.ndarray:
            assert engine.kv_memory is not None
            pin_id, found = engine.pin_cached(hashes)
            engine.unpin(pin_id)
            return engine.kv_memory.blocks[found.blocks].copy()

        return await self.parts.engine.call(read)

    async def forget(self) -> None:
        """Empty its cache."""
        await self.parts.engine.reset_prefix_cache()

    def metric(self, name: str, **labels: str) -> float:
        """A counter's value, 0 before it was counted for the first time."""
        return self.parts.metrics.get_sample_value(f"baton_{name}_total", labels) or 0.0


@asynccontextmanager
async def live_worker(
    model: Path,
    name: str,
    *,
    connector: str = "shm",
    runtime_dir: Path,
    policy: ReusePolicy = ReusePolicy.ALWAYS,
    patience_ms: float = 10_000.0,
    stall_s: float = 30.0,
    servicer: Callable[..., TransferServicer] = TransferServicer,
    num_blocks: int = 128,
    model_settings: Mapping[str, str] | None = None,
    lora_dir: Path | None = None,
    num_ranks: int = 1,
    is_remote: bool = False,
    encrypt: bool = False,
    packing: Literal["auto", "on", "off"] = "auto",
    by_layers: Literal["on", "off"] = "off",
    **engine: Any,
) -> AsyncIterator[LiveWorker]:
    """`servicer` may be one that cheats; `model_settings`: fields of `ModelSettings`; `engine`:
    fields of `EngineConfig`. With `lora_dir` it serves adapters. Of `num_ranks` and
    `is_remote` see `scattered_ranks`.
    """
    usual = USUAL | {"enable_lora": lora_dir is not None, "num_blocks": num_blocks}
    decode = DecodeSettings(transfer_stall_s=stall_s, transfer_by_layers=by_layers)
    config = WorkerConfig(
        model=ModelSettings(model=model, **({"dtype": "float32"} | dict(model_settings or {}))),
        name=name,
        directory=("127.0.0.1:1",),
        connectors=(connector,),
        runtime_dir=runtime_dir,
        num_threads=1,
        lora_dir=lora_dir,
        transfer_encryption="on" if encrypt else "off",
        transfer_packing=packing,
        reuse=ReuseSettings(reuse_policy=policy, reuse_patience_ms=patience_ms),
        engine=EngineConfig(**(usual | engine)),
    )
    async with _opened(config, num_ranks, is_remote=is_remote) as parts:
        services = ServiceSet(server := RpcServer(()))
        add_services(WorkerProgramConfig(worker=config, decode=decode), parts, services)
        _add_worker_services(parts, services, servicer)
        _switch_to(services, server)
        await server.start("127.0.0.1:0")
        try:
            yield LiveWorker(parts, f"127.0.0.1:{server.port}")
        finally:
            await server.stop(0)


def _switch_to(services: ServiceSet, server: RpcServer) -> None:
    switch = ServiceSwitch()
    switch.put(services)
    server.server.add_generic_rpc_handlers((switch,))


@asynccontextmanager
async def _opened(
    config: WorkerConfig, num_ranks: int, *, is_remote: bool
) -> AsyncIterator[WorkerParts]:
    weights = await asyncio.to_thread(load_weights, config, first_source(config), None)
    open_with = partial(
        open_parts, adapters=open_adapters(config), weights=weights, followers=NO_FOLLOWERS
    )
    async with AsyncExitStack() as stack:
        with scattered_engines(num_ranks, is_remote=is_remote):
            parts = await stack.enter_async_context(
                open_with(config, Preference(Role.DECODE), read_token_table=read_token_table)
            )
        adopt(parts)
        yield parts


def _add_worker_services(
    parts: WorkerParts, services: ServiceSet, servicer: Callable[..., TransferServicer]
) -> None:
    transfer_pb2_grpc.add_TransferServicer_to_server(
        servicer(
            info=parts.peer_info,
            endpoints=parts.endpoints,
            recipients=parts.recipients,
            engine=parts.engine,
        ),
        services.server,
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(
        WorkerServicer(
            info=parts.describe(),
            engine=parts.engine,
            gate=parts.gate,
            num_open_transfers=lambda: parts.transfers.num_open,
            releases=parts.releases,
            adapters=parts.adapters,
            roles=parts.roles,
        ),
        services.server,
    )


@asynccontextmanager
async def live_pair(
    model: Path, runtime_dir: Path, connector: str, **settings: Any
) -> AsyncIterator[tuple[LiveWorker, LiveWorker]]:
    """Two workers, `w0` and `w1`."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                live_worker(
                    model, f"w{number}", connector=connector, runtime_dir=runtime_dir, **settings
                )
            )
            for number in range(2)
        ]
        yield first, second
