"""A worker with blocks on the GPU in a process of its own: `python -m tests.gpu.cuda_peer DIR`.

It waits for a ticket on its standard input, sends all its blocks, says the digest, and waits to be
told to go on or to end.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import torch

from shared.connector.device.cuda_ipc import CudaIpcConnector
from shared.connector.protocol.limits import TransferLimits
from shared.engine.memory.cuda_blocks import CudaBlocks
from shared.engine.memory.cuda_ipc import CudaIpc
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from tests.integration.connector.peer import from_json

CHILD, PARENT = WorkerId("child", "1"), WorkerId("parent", "1")
LAYOUT = KVLayout.single(
    num_layers=32, num_kv_heads=8, block_size=16, head_dim=128, dtype="bfloat16"
)
NUM_BLOCKS = 512
LIMITS = TransferLimits(window_bytes=512 << 20, piece_bytes=128 << 20)


def make_cache(num_blocks: int, device: str = "cuda:0") -> torch.Tensor:
    """Words that say where they are: no two blocks are alike."""
    shape = (LAYOUT.num_layers, 2, LAYOUT.num_kv_heads, LAYOUT.block_size, LAYOUT.head_dim)
    words = torch.arange(num_blocks * LAYOUT.block_bytes // 4, dtype=torch.int32, device=device)
    return words.view(torch.bfloat16).view(num_blocks, *shape)


def make_connector(worker: WorkerId, cache: torch.Tensor, folder: Path) -> CudaIpcConnector:
    """A connector over `cache`."""
    torch.cuda.synchronize(cache.device)
    blocks = CudaBlocks(cache, LAYOUT, CudaIpc.load())
    return CudaIpcConnector(worker=worker, memory=blocks, runtime_dir=folder, limits=LIMITS)


async def main(folder: Path) -> None:
    """Send whatever is asked for, ticket by ticket, until the input ends."""
    # Not at the start of an allocation: the cache is not alone in it either.
    cache = make_cache(NUM_BLOCKS + 1)[1:]
    connector = make_connector(CHILD, cache, folder)
    await connector.start()
    while line := await asyncio.to_thread(sys.stdin.readline):
        outbound = await connector.connect(from_json(line), 30)
        await outbound.push(0, range(from_json(line).num_blocks))
        sys.stdout.write(f"pushed {await outbound.finish(60)}\n")
        sys.stdout.flush()
    await connector.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
