"""A snapshot of an engine's state and counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.engine.offload.stats import TierStats
    from shared.engine.pipeline.counters import EngineCounters
    from shared.engine.requests.adapter_requests import AdapterUse
    from shared.engine.schedule.scheduler import Scheduler
    from shared.kv.block_pool import BlockPool
    from shared.kv.tier import BlockTier
    from shared.telemetry.plain_histogram import PlainHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine's state and its counters since start."""

    num_running: int = 0
    num_waiting: int = 0
    #: Sequences that wait for blocks of lower tiers.
    num_loading: int = 0
    #: Sequences that wait for blocks of a peer, in the pool or in host memory.
    num_receiving: int = 0
    num_held: int = 0
    #: Blocks of tokens: one block of each group of layers counts once.
    num_blocks: int = 0
    num_free_blocks: int = 0
    #: Free blocks that still have a cached prefix.
    num_cached_blocks: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    #: Accepted drafts by their position in the draft, since start.
    accepted_per_pos: tuple[int, ...] = ()
    #: Tokens per step; continues to count after the snapshot.
    step_sizes: PlainHistogram | None = None
    #: Landings in the host tier that ended, by outcome, and requests refused one, by reason.
    landings: dict[str, int] = field(default_factory=dict)
    refused_landings: dict[str, int] = field(default_factory=dict)
    #: None: it serves no adapters.
    adapters: AdapterUse | None = None
    #: The tiers below the pool, if there are any.
    tiers: dict[BlockTier, TierStats] = field(default_factory=dict)


def read_stats(
    scheduler: Scheduler,
    pool: BlockPool,
    counters: EngineCounters,
    *,
    num_groups: int,
    tiers: dict[BlockTier, TierStats],
    accepted_per_pos: tuple[int, ...],
    adapters: AdapterUse | None = None,
) -> EngineStats:
    """Return a snapshot of the engine's present state."""
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_loading=len(scheduler.loading),
        num_receiving=len(scheduler.receiving) + len(scheduler.landings.landing),
        num_held=len(scheduler.held),
        num_blocks=pool.num_blocks // num_groups,
        num_free_blocks=pool.num_free // num_groups,
        num_cached_blocks=pool.num_cached // num_groups,
        counters=dict(counters),
        step_sizes=counters.step_sizes,
        accepted_per_pos=accepted_per_pos,
        tiers=tiers,
        landings=dict(scheduler.landings.outcomes),
        refused_landings=dict(scheduler.landings.refusals),
        adapters=adapters,
    )
