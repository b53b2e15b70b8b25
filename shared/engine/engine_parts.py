"""The parts of an engine, made of a loaded model and its settings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.engine.memory.sizing import (
    kv_split,
    own_layout,
    plan_memory,
    rank_layouts,
    read_layout,
    read_namespace,
)
from shared.engine.offload.build import build_offload
from shared.engine.offload.cached_blocks import CachedBlocks
from shared.engine.pipeline.build import build_pipeline
from shared.engine.pipeline.counters import EngineCounters
from shared.engine.pipeline.postprocess import Postprocessor
from shared.engine.requests.adapter_requests import AdapterRequests
from shared.engine.schedule.build import build_scheduler
from shared.engine.step.model_parts import build_model_parts
from shared.engine.step.step_memory import largest_step_bytes
from shared.engine.timing.step_model import StepModel
from shared.kv.block_pool import BlockPool
from shared.kv.prefix_cache import PrefixCache
from shared.kv.split import KVSplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.adapters.store import AdapterStore
    from shared.engine.pipeline.step_pipeline import StepPipeline
    from shared.engine.schedule.scheduler import Scheduler
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.decode_graphs import GraphRecorder
    from shared.engine.step.followers.followers import Followers
    from shared.engine.step.model_parts import ModelParts
    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory
    from shared.model.loaded import LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What an engine works with: memory of a known size, and what fills it."""

    memory: EngineMemory
    model: ModelParts
    #: The content of all tiers.
    cached: CachedBlocks
    adapters: AdapterRequests
    scheduler: Scheduler
    counters: EngineCounters
    postprocessor: Postprocessor
    steps: StepPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The pool of blocks, whose memory the parts of the model have."""

    layout: KVLayout
    num_blocks: int
    #: The longest sequence.
    max_model_len: int
    #: Root of the block hashes.
    namespace: bytes
    pool: BlockPool
    prefix_cache: PrefixCache


def build_engine_parts(
    loaded: LoadedModel,
    config: EngineConfig,
    *,
    recorder: GraphRecorder | None,
    adapters: AdapterStore | None,
    followers: Followers,
    clock: Callable[[], float],
) -> EngineParts:
    """Build the parts, those of other ranks too; see `Engine`. Nothing is left if one fails.

    Raises ConfigError: the settings do not fit the model or the memory.
    """
    memory = _plan(loaded, config, followers)
    with ExitStack() as on_failure:
        model = _build_model(loaded, config, memory, recorder, followers, on_failure)
        offload = build_offload(
            config,
            memory.layout,
            model.arena,
            memory.pool,
            namespace=memory.namespace,
            memories=rank_memories(model, followers),
            split=split_of(loaded, memory.layout),
        )
        cached = CachedBlocks(memory.pool, memory.prefix_cache, offload)
        on_failure.callback(cached.close)
        requests = AdapterRequests(followers.lead_slots(loaded.model), config, adapters)
        timing = StepModel()
        scheduler = build_scheduler(
            memory.pool,
            memory.prefix_cache,
            offload,
            config,
            requests.gate,
            num_stages=model.runner.num_stages,
            model=timing,
            clock=clock,
        )
        parts = _with_steps(config, memory, model, cached, requests, scheduler, timing, clock)
        on_failure.pop_all()
    return parts


def rank_memories(model: ModelParts, followers: Followers) -> tuple[KVMemory, ...]:
    """Return the memory behind the blocks of every rank, by rank; empty on an accelerator."""
    own = model.arena.memory
    return () if own is None else (own, *followers.memories)


def split_of(loaded: LoadedModel, layout: KVLayout) -> KVSplit:
    """Return how the ranks divide the blocks of `layout`."""
    return KVSplit.of(layout) if loaded.shards is None else kv_split(loaded.shards)


def _plan(loaded: LoadedModel, config: EngineConfig, followers: Followers) -> EngineMemory:
    """Return the memory of a model, which is not allocated yet."""
    layout = read_layout(loaded, config)
    own, layouts = own_layout(loaded, layout), rank_layouts(loaded, layout)

    def measure(max_model_len: int) -> int:
        followers.measure(loaded.fingerprint, config, max_model_len)
        return largest_step_bytes(loaded, own, config, max_model_len)

    num_blocks, max_model_len = plan_memory(
        config,
        max(layouts, key=lambda each: each.block_bytes),
        model_limit=loaded.spec.max_model_len,
        measure=measure,
        num_ranks=followers.local_size,
    )
    namespace, pool = read_namespace(loaded, layout), BlockPool(num_blocks)
    return EngineMemory(
        layout=layout,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        namespace=namespace,
        pool=pool,
        prefix_cache=PrefixCache.over(pool, layout, enabled=config.enable_prefix_caching),
    )


def _build_model(
    loaded: LoadedModel,
    config: EngineConfig,
    memory: EngineMemory,
    recorder: GraphRecorder | None,
    followers: Followers,
    on_failure: ExitStack,
) -> ModelParts:
    """Build the parts of all ranks; `on_failure` frees them."""
    on_failure.callback(followers.unbuild)
    followers.build(
        loaded.fingerprint,
        config,
        num_blocks=memory.num_blocks,
        max_model_len=memory.max_model_len,
        layouts=rank_layouts(loaded, memory.layout),
    )
    parts = build_model_parts(
        loaded,
        config,
        own_layout(loaded, memory.layout),
        num_blocks=memory.num_blocks,
        max_model_len=memory.max_model_len,
        recorder=recorder,
        followers=followers,
    )
    on_failure.callback(parts.arena.close)
    followers.record(parts.record)
    return parts


def _with_steps(
    config: EngineConfig,
    memory: EngineMemory,
    model: ModelParts,
    cached: CachedBlocks,
    adapters: AdapterRequests,
    scheduler: Scheduler,
    timing: StepModel,
    clock: Callable[[], float],
) -> EngineParts:
    """Add the steps to the other parts."""
    counters = EngineCounters()
    postprocessor = Postprocessor(scheduler, max_model_len=memory.max_model_len)
    steps = build_pipeline(
        config,
        model,
        memory.pool,
        scheduler,
        postprocessor,
        counters,
        adapters.slots,
        model=timing,
        clock=clock,
    )
    return EngineParts(
        memory=memory,
        model=model,
        cached=cached,
        adapters=adapters,
        scheduler=scheduler,
        counters=counters,
        postprocessor=postprocessor,
        steps=steps,
    )
