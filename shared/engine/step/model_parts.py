"""The parts that run a model on its device: KV storage, batches, graphs, runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shared.engine.memory.arena import KVArena
from shared.engine.memory.kv_format import choose_format
from shared.engine.sampler.processors.base import ProcessorContext
from shared.engine.sampler.processors.load import load_processors
from shared.engine.step.batch.buffers import BatchLayout, step_buffers
from shared.engine.step.batch.builder import BatchBuilder
from shared.engine.step.decode_graphs import CudaRecorder, DecodeGraphs, graph_sizes
from shared.engine.step.hidden import HiddenKeeper, HiddenPool
from shared.engine.step.model_runner import ModelRunner
from shared.engine.step.state_rollback import StateRollback
from shared.engine.step.tokens.choice import chooser_of
from shared.engine.step.tokens.row_states import RowStates
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.engine.sampler.processors.attached import ProcessorSet
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.decode_graphs import GraphRecorder
    from shared.engine.step.followers.followers import Followers, Meet, StepRunner
    from shared.kv.layout import KVLayout
    from shared.model.loaded import LoadedModel


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of an engine that use tensors."""

    loaded: LoadedModel
    arena: KVArena
    runner: StepRunner
    processors: ProcessorSet
    hidden: HiddenPool
    batches: BatchBuilder
    #: Of decode steps, to be recorded; None: every step is launched piece by piece.
    graphs: DecodeGraphs | None

    def record(self, meet: Meet) -> None:
        """Record the decode steps, if they are to be; see `Followers.record`."""
        if self.graphs is not None:
            self.graphs.record(self.batches.padding, meet)


def build_model_parts(
    loaded: LoadedModel,
    config: EngineConfig,
    layout: KVLayout,
    *,
    num_blocks: int,
    max_model_len: int,
    recorder: GraphRecorder | None,
    followers: Followers,
) -> ModelParts:
    """Allocate the KV cache, and prepare to record decode steps where that is possible.

    Raises ConfigError: stages of a pipeline do not do what is asked.

    `recorder` is by default CUDA's on a CUDA device, unless graphs are turned off. The runner leads
    the `followers`, whose own parts are there already. Before its first step: `ModelParts.record`.
    """
    _check_stages(loaded, config, layout)
    device = torch.device(config.device)
    processors = _processors(loaded, config)
    recorder = _recorder(loaded, config, device, recorder)
    # Padding of a recorded step needs a block to write to.
    scratch_block = None if recorder is None else num_blocks
    arena = KVArena(
        layout,
        num_blocks,
        device=device,
        num_scratch_blocks=0 if recorder is None else 1,
        scales=choose_format(config.kv_cache_dtype, loaded, device).of_groups(loaded),
    )
    batches = _batches(config, layout, layout.num_blocks(max_model_len), scratch_block)
    graphs = None
    if recorder is not None:
        graphs = _graphs(loaded, config, arena, recorder, max_model_len)
    hidden = HiddenPool(loaded, arena)
    runner = ModelRunner(
        loaded.model,
        arena.groups,
        batches,
        RowStates(processors),
        HiddenKeeper(loaded.model, hidden),
        chooser_of(loaded.model, device),
        max_num_seqs=config.max_num_seqs,
        feeds_on_device=config.overlaps_steps,
        graphs=graphs,
        rollback=_rollback(arena, layout),
        chooses=loaded.shards is None or loaded.shards.split.is_last,
    )
    led = followers.lead(runner, config)
    return ModelParts(loaded, arena, led, processors, hidden, batches, graphs)


def _recorder(
    loaded: LoadedModel, config: EngineConfig, device: torch.device, given: GraphRecorder | None
) -> GraphRecorder | None:
    if config.enforce_eager or not loaded.model.is_recordable:
        return None
    if given is None and device.type == "cuda":
        return CudaRecorder(device)
    return given


def _check_stages(loaded: LoadedModel, config: EngineConfig, layout: KVLayout) -> None:
    """Refuse drafts where the last stage alone learns which states the others must put back."""
    num_stages = 1 if loaded.shards is None else loaded.shards.split.num_stages
    if num_stages > 1 and layout.has_states and config.speculation is not None:
        raise ConfigError(
            f"pipeline_parallel_size {num_stages}: stages of {loaded.spec.architecture} do not put "
            "back states behind rejected drafts: leave out speculative_config"
        )


def _rollback(arena: KVArena, layout: KVLayout) -> StateRollback | None:
    num_states = layout.num_groups - layout.num_token_groups
    return StateRollback(arena.groups, num_states, layout.block_size) if num_states else None


def _batches(
    config: EngineConfig, layout: KVLayout, max_blocks_per_seq: int, scratch_block: int | None
) -> BatchBuilder:
    largest = BatchLayout(
        config.max_num_batched_tokens,
        config.max_num_seqs,
        max_blocks_per_seq,
        max(1, layout.num_token_groups),
        layout.num_groups - layout.num_token_groups,
    )
    device = torch.device(config.device)
    return BatchBuilder(
        step_buffers(largest.num_bytes, device),
        max_num_seqs=config.max_num_seqs,
        max_blocks_per_seq=max_blocks_per_seq,
        block_size=config.block_size,
        num_groups=layout.num_groups,
        num_state_groups=layout.num_groups - layout.num_token_groups,
        scratch_block=scratch_block,
        beside=step_buffers(largest.num_bytes, device) if device.type == "cpu" else None,
    )


def _graphs(
    loaded: LoadedModel,
    config: EngineConfig,
    arena: KVArena,
    recorder: GraphRecorder,
    max_model_len: int,
) -> DecodeGraphs:
    return DecodeGraphs(
        loaded.model,
        arena.groups,
        recorder,
        graph_sizes(config.cuda_graph_sizes, config.max_num_seqs),
        assumed_len=max_model_len if arena.device.type == "cuda" else 1,
    )


def _processors(loaded: LoadedModel, config: EngineConfig) -> ProcessorSet:
    context = ProcessorContext(loaded.spec.vocab_size, config.device)
    return load_processors(config.logits_processors, context)
