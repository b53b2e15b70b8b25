"""Makes a scheduler of an engine's settings, and checks its books."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.offload.landings import LandingRefusal
from shared.engine.schedule.block_manager import BlockManager
from shared.engine.schedule.chunk_limit import ChunkLimit
from shared.engine.schedule.landings import Landings
from shared.engine.schedule.policies import RANKS
from shared.engine.schedule.scheduler import Scheduler
from shared.engine.schedule.urgency import Urgency
from shared.engine.sequence.sequence import Status
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.engine.offload.offload import KVOffload
    from shared.engine.schedule.gates.adapter import AdapterGate
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.timing.step_model import StepModel
    from shared.kv.block_pool import BlockPool
    from shared.kv.prefix_cache import PrefixCache


def build_scheduler(
    pool: BlockPool,
    cache: PrefixCache,
    offload: KVOffload | None,
    config: EngineConfig,
    adapters: AdapterGate | None = None,
    *,
    num_stages: int = 1,
    model: StepModel,
    clock: Callable[[], float],
) -> Scheduler:
    """Return an idle scheduler of an engine with these settings."""
    return Scheduler(
        BlockManager(
            pool,
            cache,
            block_size=config.block_size,
            max_step_tokens=config.max_num_batched_tokens,
            offload=offload,
        ),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        policy=config.policy,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_chunked_prefill=config.enable_chunked_prefill,
        adapters=adapters,
        num_stages=num_stages,
        limit=ChunkLimit(model, block_size=config.block_size, num_stages=num_stages),
        urgency=Urgency(model, max_step_tokens=config.max_num_batched_tokens, clock=clock),
        landings=_landings(offload, config),
    )


def _landings(offload: KVOffload | None, config: EngineConfig) -> Landings:
    refusal = None if config.kv_offload_landing else LandingRefusal.OFF
    if offload is None:
        refusal = LandingRefusal.NO_HOST_TIER
    return Landings(
        None if offload is None else offload.landings,
        refusal,
        block_size=config.block_size,
        rank=RANKS[config.policy],
    )


def check_scheduler(scheduler: Scheduler, *, draft_blocks: Iterable[int] = ()) -> None:
    """Raise InternalError if a sequence or a block is lost, or in two places.

    `draft_blocks` are held by a proposer.
    """
    s = scheduler
    placed = [*s.running, *s.loading.values(), *s.receiving.values(), *s.held.values()]
    waiting = [seq for seq in s.sequences.values() if seq.status is Status.WAITING]
    num_placed = len(placed) + len(waiting) + len(s.landings.landing)
    if len(waiting) != len(s.waiting) or num_placed != len(s.sequences):
        raise InternalError("scheduler: a sequence is in no place, or in two")
    for seq in placed:
        if seq.num_computed_tokens > seq.num_blocks * s.blocks.block_size:
            raise InternalError(f"scheduler: {seq.request_id} has KV without blocks")
    waiting += s.landings.landing.values()
    if any(seq.num_blocks or seq.num_computed_tokens for seq in waiting):
        raise InternalError("scheduler: a waiting sequence has blocks or progress")
    if any(not seq.num_in_flight_tokens for seq in s.draining):
        raise InternalError("scheduler: a sequence drains for ever")
    s.blocks.check_integrity([*placed, *s.draining], draft_blocks)
