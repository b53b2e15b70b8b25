"""A worker whose blocks are a tensor, in a process of its own: `python -m … DEVICE NUM_BLOCKS`.

It waits for a ticket on its standard input, sends that many blocks, says the digest, and waits to
be told to go on or to end.
"""

from __future__ import annotations

import asyncio
import sys

import torch

from shared.connector.nixl.connector import NixlConnector
from shared.connector.protocol.limits import TransferLimits
from shared.engine.memory.device_blocks import DeviceBlocks
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from tests.integration.connector.harnesses import keep_to_loopback
from tests.integration.connector.peer import from_hex

CHILD, PARENT = WorkerId("child", "1"), WorkerId("parent", "1")
LAYOUT = KVLayout.single(
    num_layers=32, num_kv_heads=8, block_size=16, head_dim=128, dtype="bfloat16"
)
LIMITS = TransferLimits(window_bytes=512 << 20, piece_bytes=128 << 20)


def make_cache(num_blocks: int, device: str) -> torch.Tensor:
    """Words that say where they are: no two blocks are alike."""
    shape = LAYOUT.block_shape(LAYOUT.groups[0])
    words = torch.arange(num_blocks * LAYOUT.block_bytes // 4, dtype=torch.int32, device=device)
    return words.view(torch.bfloat16).view(num_blocks, *shape)


def make_connector(worker: WorkerId, cache: torch.Tensor) -> NixlConnector:
    """A connector over `cache`."""
    keep_to_loopback()
    if cache.is_cuda:
        torch.cuda.synchronize(cache.device)
    return NixlConnector(worker=worker, memory=DeviceBlocks(cache, LAYOUT), limits=LIMITS)


async def main(device: str, num_blocks: int) -> None:
    """Send whatever is asked for, ticket by ticket, until the input ends."""
    # Not at the start of an allocation: the cache is not alone in it either.
    cache = make_cache(num_blocks + 1, device)[1:]
    connector = make_connector(CHILD, cache)
    await connector.start()
    while line := await asyncio.to_thread(sys.stdin.readline):
        outbound = await connector.connect(from_hex(line), 30)
        await outbound.push(0, range(from_hex(line).num_blocks))
        sys.stdout.write(f"pushed {await outbound.finish(60)}\n")
        sys.stdout.flush()
    await connector.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
