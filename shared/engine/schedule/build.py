"""The scheduler of an engine, put together from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.schedule.block_manager import BlockManager
from shared.engine.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from shared.engine.config import EngineConfig
    from shared.engine.offload.offload import KVOffload
    from shared.kv.block_pool import BlockPool
    from shared.kv.prefix_cache import PrefixCache


def build_scheduler(
    pool: BlockPool, cache: PrefixCache, offload: KVOffload | None, config: EngineConfig
) -> Scheduler:
    """With nothing to do yet."""
    return Scheduler(
        BlockManager(pool, cache, block_size=config.block_size, offload=offload),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        policy=config.scheduling_policy,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_chunked_prefill=config.enable_chunked_prefill,
    )
