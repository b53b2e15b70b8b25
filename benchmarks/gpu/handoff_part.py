"""T1 to T3: a prompt's KV from one engine to another on the same device, over each connector.

Both engines are in this process and share the weights: that shows what a transfer costs and that
its bytes are right, not what separating the two gains.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.engine_part import make_engine, make_request, step
from benchmarks.gpu.model import make_model
from shared.connector.device.staged import StagedConnector
from shared.connector.device.staging_pool import StagingPool
from shared.connector.local import LocalHub
from shared.connector.registry import ConnectorSettings, create
from shared.engine.sequence.events import Admitted, NewTokens
from shared.engine.sequence.request import KVSource
from shared.identity import WorkerId

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench
    from shared.connector.base import Receipt
    from shared.engine.engine import Engine
    from shared.engine.sequence.request import EngineRequest
    from shared.model.loaded import LoadedModel

_TIMEOUT_S = 60.0


class Side:
    """An engine with its staging memory and one connector."""

    def __init__(self, bench: Bench, loaded: LoadedModel) -> None:
        self.engine = make_engine(bench, loaded, eager=False, max_num_seqs=8)
        layout = self.engine.layout
        self.staging = self.engine.stage_kv(layout.num_blocks(self.engine.max_model_len))
        self.worker = WorkerId.born("bench")
        self.connector: StagedConnector

    async def connect(self, name: str, settings: ConnectorSettings) -> None:
        """Start the connector called `name`."""
        (inner,) = create([name], worker=self.worker, memory=self.staging.memory, settings=settings)
        pool = StagingPool(self.staging.memory.num_blocks)
        self.connector = StagedConnector(inner, pool, self.staging)
        await self.connector.start()

    def close(self) -> None:
        """Free the staging memory and the engine; call it after the connector has ended."""
        self.staging.close()
        self.engine.close()


def measure_handoff(bench: Bench) -> None:
    """One row per connector and length."""
    loaded = make_model(bench)
    for name in ("local", "shm", "zmq"):
        asyncio.run(_measure_connector(bench, loaded, name))


async def _measure_connector(bench: Bench, loaded: LoadedModel, name: str) -> None:
    prefill, decode = Side(bench, loaded), Side(bench, loaded)
    async with AsyncExitStack() as stack:
        stack.callback(prefill.close)
        stack.callback(decode.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = ConnectorSettings(hub=LocalHub(), runtime_dir=folder / "run")
        for side in (prefill, decode):
            await side.connect(name, settings)
            stack.push_async_callback(side.connector.close)
        for num_tokens in bench.pick((2048, 8192), (40,)):
            try:
                await _measure_length(bench, prefill, decode, name, num_tokens)
            except Exception as error:  # noqa: BLE001 the next connector may work
                bench.report.note("T1", f"{name}, {num_tokens} tokens", f"failed: {error!r}"[:200])
        await _compare_tokens(bench, prefill, decode, name)


async def _measure_length(
    bench: Bench, prefill: Side, decode: Side, name: str, num_tokens: int
) -> None:
    times, receipt, vocab_size = [], None, bench.pick(128256, 256)
    for number in range(bench.pick(5, 2)):
        request = make_request(f"t{number}", num_tokens, vocab_size, max_tokens=2)
        seconds, receipt, _ = await _hand_off(prefill, decode, request, check_bytes=number == 0)
        times.append(seconds)
    assert receipt is not None
    row = bench.report.measure(
        "T1", f"{name}, {num_tokens} tokens: from the first token to the KV's arrival",
        lambda: median(times), num_bytes=3.0 * 2 * receipt.num_bytes,
    )  # fmt: skip
    row.value = f"{receipt.num_bytes / 2**20:.1f} MiB"
    bench.report.note("T2", f"{name}, {num_tokens} tokens: pieces", str(receipt.num_pieces))
    bench.report.note("T3", f"{name}, {num_tokens} tokens: KV bytes", "equal")


async def _hand_off(
    prefill: Side, decode: Side, request: EngineRequest, *, check_bytes: bool = False
) -> tuple[float, Receipt, list[int]]:
    """Seconds after the first token, what arrived, and all tokens."""
    name = request.request_id
    decode.engine.add(replace(request, kv_source=KVSource.TRANSFER))
    target = _admission(decode.engine)
    prefill.engine.add(replace(request, hold_blocks=True))
    source, first = _prefill(prefill.engine)
    start = time.perf_counter()
    inbound = await decode.connector.open(
        request_id=name, sender=prefill.worker, blocks=target.tables[0]
    )
    outbound = await prefill.connector.connect(inbound.ticket, _TIMEOUT_S)
    await outbound.push(0, source.tables[0])
    receipt, digest = await asyncio.gather(inbound.wait(_TIMEOUT_S), outbound.finish(_TIMEOUT_S))
    seconds = time.perf_counter() - start
    if receipt.digest != digest:
        raise RuntimeError("the digests differ")
    if check_bytes and not _same_kv(prefill.engine, decode.engine, source, target, request):
        raise RuntimeError("the KV bytes differ")
    decode.engine.complete_transfer(name, first)
    prefill.engine.release(name)
    tokens = [first]
    while decode.engine.has_work():
        tokens += [token for _, token in step(decode.engine)]
    while prefill.engine.has_work():
        step(prefill.engine)
    return seconds, receipt, tokens


def _admission(engine: Engine) -> Admitted:
    while True:
        for event in engine.step():
            if isinstance(event, Admitted):
                return event


def _prefill(engine: Engine) -> tuple[Admitted, int]:
    admitted: Admitted | None = None
    while True:
        for event in engine.step():
            if isinstance(event, Admitted):
                admitted = event
            if isinstance(event, NewTokens) and admitted is not None:
                return admitted, event.token_ids[0]


def _same_kv(
    prefill: Engine, decode: Engine, source: Admitted, target: Admitted, request: EngineRequest
) -> bool:
    """Bit by bit, of the prompt's full blocks: behind the last token nothing is defined."""
    num_full = len(request.prompt_token_ids) // prefill.layout.block_size
    halves = (
        (prefill._parts.arena.blocks, source.tables[0]),
        (decode._parts.arena.blocks, target.tables[0]),
    )
    left, right = (cache[list(ids[:num_full])] for cache, ids in halves)
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


async def _compare_tokens(bench: Bench, prefill: Side, decode: Side, name: str) -> None:
    """T3: the tokens of a hand-off are those of one engine."""
    num, vocab_size = bench.pick(64, 4), bench.pick(128256, 256)
    num_equal = 0
    for number in range(num):
        if bench.report.is_over:
            break
        request = make_request(f"c{number}", 17 + 3 * number, vocab_size, max_tokens=16)
        _, _, handed = await _hand_off(prefill, decode, request)
        decode.engine.add(request)
        alone = []
        while decode.engine.has_work():
            alone += [token for _, token in step(decode.engine)]
        num_equal += handed == alone
    bench.report.note("T3", f"{name}: answers equal to one engine's", f"{num_equal} of {num}")
