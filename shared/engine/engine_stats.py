"""A snapshot of an engine for whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.events import EngineStats

if TYPE_CHECKING:
    from shared.engine.counters import EngineCounters
    from shared.engine.offload.stats import TierStats
    from shared.engine.scheduler import Scheduler
    from shared.kv.block_pool import BlockPool
    from shared.kv.tier import BlockTier


def read_stats(
    scheduler: Scheduler,
    pool: BlockPool,
    counters: EngineCounters,
    *,
    tiers: dict[BlockTier, TierStats],
    accepted_per_pos: tuple[int, ...],
) -> EngineStats:
    """How things are now."""
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_loading=len(scheduler.loading),
        num_receiving=len(scheduler.receiving),
        num_held=len(scheduler.held),
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free,
        num_cached_blocks=pool.num_cached,
        counters=dict(counters),
        step_sizes=counters.step_sizes,
        accepted_per_pos=accepted_per_pos,
        tiers=tiers,
    )
