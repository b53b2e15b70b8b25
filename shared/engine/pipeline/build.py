"""An engine's step pipeline and its speculation, made from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.pipeline.planner import StepPlanner
from shared.engine.pipeline.step_pipeline import StepPipeline
from shared.engine.settings.speculation import HandOffPolicy
from shared.engine.speculation.base import ProposerContext, StatesReader
from shared.engine.speculation.drafts.blocks import PoolDraftBlocks
from shared.engine.speculation.registry import create_proposer
from shared.engine.speculation.speculator import Speculator

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.adapters.slots import AdapterSlots
    from shared.engine.pipeline.counters import EngineCounters
    from shared.engine.pipeline.postprocess import Postprocessor
    from shared.engine.schedule.scheduler import Scheduler
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.model_parts import ModelParts
    from shared.engine.timing.step_model import StepModel
    from shared.kv.block_pool import BlockPool


def build_pipeline(
    config: EngineConfig,
    parts: ModelParts,
    pool: BlockPool,
    scheduler: Scheduler,
    postprocessor: Postprocessor,
    counters: EngineCounters,
    slots: AdapterSlots | None,
    *,
    model: StepModel,
    clock: Callable[[], float],
) -> StepPipeline:
    """Return the pipeline, which teaches `model` what its steps cost.

    Raises:
        ConfigError: the configured speculation is not available here.
    """
    return StepPipeline(
        scheduler,
        StepPlanner(
            max_num_seqs=config.max_num_seqs,
            vocab_size=parts.loaded.spec.vocab_size,
            slots=slots,
        ),
        parts.runner,
        postprocessor,
        counters,
        model,
        clock=clock,
        overlap=config.overlaps_steps,
        num_stages=parts.runner.num_stages,
        kv_layers=parts.loaded.spec.kv_groups[: parts.loaded.spec.num_token_groups],
        speculator=_build_speculator(
            config,
            parts,
            pool,
            scheduler,
            counters,
            max_model_len=postprocessor.max_model_len,
        ),
    )


def _build_speculator(
    config: EngineConfig,
    parts: ModelParts,
    pool: BlockPool,
    scheduler: Scheduler,
    counters: EngineCounters,
    *,
    max_model_len: int,
) -> Speculator | None:
    """Return the engine's speculation; None if the settings turn it off."""
    settings = config.speculation
    if settings is None:
        return None
    blocks = PoolDraftBlocks(pool, parts.arena.reach)
    proposer = create_proposer(
        ProposerContext(
            config=settings,
            engine_config=config,
            target=parts.loaded,
            max_model_len=max_model_len,
            arena=parts.arena,
            blocks=blocks,
        )
    )
    speculator = Speculator(
        proposer,
        settings,
        blocks,
        counters,
        parts.hidden,
        vocab_size=parts.loaded.spec.vocab_size,
        max_model_len=max_model_len,
    )
    if proposer.hidden_needs:
        parts.runner.keep_hidden(proposer.hidden_needs)
        if isinstance(proposer, StatesReader) and settings.hand_off != HandOffPolicy.NONE:
            parts.hidden.wanted = parts.hidden.format(proposer.hidden_needs)
    scheduler.blocks.reclaim = speculator.reclaim
    scheduler.notes_departed = True
    return speculator
