"""The shape of a model's KV blocks, and their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import structlog
import torch

from shared.engine.memory.kv_format import choose_format
from shared.errors import ConfigError
from shared.kv.group_rules import GroupKind
from shared.kv.identity import namespace_hash
from shared.kv.layout import KVGroup, KVLayout
from shared.kv.split import KVSplit, rank_layout
from shared.model.spec.mixers import LatentAttentionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.settings.engine import EngineConfig
    from shared.model.loaded import LoadedModel
    from shared.model.sharding.shards import Shards
    from shared.model.spec.decoder import DecoderSpec

log = structlog.get_logger(__name__)


def read_layout(loaded: LoadedModel, config: EngineConfig) -> KVLayout:
    """Return the shape of the model's blocks.

    Raises:
        ConfigError: they cannot have the requested KV dtype.
        ModelLoadError: a scale of the checkpoint is missing or wrong; names it.
    """
    own = choose_format(config.kv_cache_dtype, loaded, torch.device(config.device))
    groups = groups_of(loaded.spec)
    layout = KVLayout.of(
        groups,
        block_size=config.block_size,
        dtype=_name(own.dtype),
        scales="" if own.scales is None else own.scales.digest,
    )
    for group in groups:
        if layout.has_token_scales and layout.block_size * group.head_dim % 4:
            raise ConfigError(
                f"kv_cache_dtype {config.kv_cache_dtype!r} needs scales on whole words: block_size "
                f"{layout.block_size} times head size {group.head_dim} is no multiple of 4"
            )
    return layout


def own_layout(loaded: LoadedModel, layout: KVLayout) -> KVLayout:
    """Return the shape of the blocks that this rank keeps; the same if there is one rank."""
    rank = 0 if loaded.shards is None else loaded.shards.split.number
    return rank_layouts(loaded, layout)[rank]


def rank_layouts(loaded: LoadedModel, layout: KVLayout) -> tuple[KVLayout, ...]:
    """Return the shapes of the blocks that each rank keeps.

    Nothing but the ranks' memory has them. Hashes, peers and tickets have the model's.
    """
    if loaded.shards is None:
        return (layout,)
    split = kv_split(loaded.shards)
    return tuple(rank_layout(layout, split, rank) for rank in range(split.size))


def kv_split(shards: Shards) -> KVSplit:
    """Return what each rank of a group keeps of the blocks of its model."""
    return KVSplit.of_stages(shards.whole.kv_groups, shards.stages, shards.split.size)


def groups_of(spec: DecoderSpec) -> tuple[KVGroup, ...]:
    """Return what the blocks of a decoder have, by group; of a part, what its blocks have."""
    return tuple(_group(spec, layers) for layers in spec.kv_groups)


def _group(spec: DecoderSpec, layers: Sequence[int]) -> KVGroup:
    num_layers = sum(layer in spec.computed for layer in layers)
    recurrence = spec.recurrences.get(layers[0])
    if recurrence is not None:
        return KVGroup(
            num_layers=num_layers,
            num_kv_heads=0,
            head_dim=0,
            kind=GroupKind.STATE,
            state_size=recurrence.state_size,
            sections=recurrence.state_sections,
        )
    mixer = spec.attentions[layers[0]]
    window = spec.kv_window(layers[0])
    kind = GroupKind.FULL
    if window is not None:
        kind = GroupKind.CHUNK if mixer.is_chunked else GroupKind.WINDOW
    if isinstance(mixer, LatentAttentionSpec):
        kind = GroupKind.LATENT
    _, num_kv_heads, head_dim = mixer.kv_shape
    return KVGroup(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kind=kind,
        window=window or 0,
    )


def read_namespace(loaded: LoadedModel, layout: KVLayout) -> bytes:
    """Return the root of the hashes of the model's blocks."""
    return namespace_hash(
        model_fingerprint=loaded.fingerprint,
        dtype=_name(loaded.dtype),
        kv_format=layout.format,
        layout_version=layout.version,
        block_size=layout.block_size,
        groups=layout.grouping,
    )


def plan_memory(
    config: EngineConfig,
    layout: KVLayout,
    *,
    model_limit: int,
    measure: Callable[[int], int],
    num_ranks: int = 1,
) -> tuple[int, int]:
    """Return the number of blocks, and the longest sequence: the pool holds at least one.

    `layout` is that of the rank whose blocks are largest. `measure` returns the bytes of the
    largest step, given the longest sequence. It is called only if memory decides how many blocks
    there are. `num_ranks`: of this host, which share its memory.

    Raises:
        ConfigError: the settings contradict each other, the model or the memory.
    """
    max_model_len = config.max_model_len or model_limit
    num_blocks = choose_num_blocks(
        config, layout, max_model_len=max_model_len, measure=measure, num_ranks=num_ranks
    )
    max_model_len = choose_max_model_len(
        config, layout, num_blocks=num_blocks, model_limit=model_limit
    )
    config.check_unchunked(max_model_len)
    log.info(
        "kv_planned",
        num_blocks=num_blocks,
        mib=round(num_blocks * layout.block_bytes / 2**20, 1),
        max_model_len=max_model_len,
        groups=describe_groups(layout, max_model_len, config.max_num_batched_tokens),
    )
    if layout.fitting_block_size > layout.block_size:
        log.warning(
            "kv_blocks_unused",
            reason="a block is as long as one layer's state, and KV fills less than half of it",
            set=f"--block-size {layout.fitting_block_size}",
        )
    return num_blocks, max_model_len


def describe_groups(layout: KVLayout, num_tokens: int, max_step_tokens: int) -> list[str]:
    """Return by group its layers, and the blocks of a sequence of `num_tokens` tokens."""
    counts = layout.num_table_blocks(num_tokens, max_step_tokens)
    found = []
    for group, count in zip(layout.groups, counts, strict=True):
        kind = f"{group.kind} of {group.window}" if group.window else f"{group.kind}"
        found.append(f"{kind}: {group.num_layers} layers, {count} blocks for {num_tokens} tokens")
    return found


def choose_num_blocks(
    config: EngineConfig,
    layout: KVLayout,
    *,
    max_model_len: int,
    measure: Callable[[int], int],
    num_ranks: int = 1,
) -> int:
    """Return the number of blocks: as configured, or what the share of free memory holds.

    Not more than could be in use. The largest step's memory is part of the share. If all blocks
    that could be in use take less than half of the share, steps have enough, and nothing is
    measured.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes // layout.block_bytes
    own = layout.num_pool_blocks(max_model_len, config.max_num_batched_tokens)
    most = own * config.max_num_seqs
    if most * layout.block_bytes <= _free_bytes(config, num_ranks) // 2:
        return most
    held = _free_bytes(config, num_ranks) // layout.block_bytes
    longest = layout.longest_sequence(held, config.max_num_batched_tokens, most=max_model_len)
    num_bytes = measure(max(1, longest))
    # Memory that the step keeps is not free any more.
    num_blocks = (_free_bytes(config, num_ranks) - num_bytes) // layout.block_bytes
    num_blocks = min(max(0, num_blocks), most)
    log.info("kv_sized", num_blocks=num_blocks, step_mib=round(num_bytes / 2**20, 1))
    return num_blocks


def choose_max_model_len(
    config: EngineConfig, layout: KVLayout, *, num_blocks: int, model_limit: int
) -> int:
    """Return the longest sequence: as configured, or what model and pool allow.

    Raises:
        ConfigError: the configured length does not fit the model or the pool, or no length does.
    """
    step, longest = config.max_num_batched_tokens, config.max_model_len or model_limit
    config.check_model_limit(model_limit)
    pool_limit = layout.longest_sequence(num_blocks, step, most=longest)
    if pool_limit < (config.max_model_len or 1):
        raise _too_small(config, layout, num_blocks=num_blocks, pool_limit=pool_limit)
    if pool_limit < longest:
        log.warning(
            "max_model_len_reduced",
            max_model_len=pool_limit,
            model_limit=model_limit,
            reason=f"the KV pool has {num_blocks} blocks of {layout.block_size} tokens",
        )
    return pool_limit


def _too_small(
    config: EngineConfig, layout: KVLayout, *, num_blocks: int, pool_limit: int
) -> ConfigError:
    needed = layout.num_pool_blocks(config.max_model_len or 1, config.max_num_batched_tokens)
    asked = f"max_model_len is {config.max_model_len}, but " if config.max_model_len else ""
    fitting = f", or a max_model_len of at most {pool_limit}" if pool_limit else ""
    return ConfigError(
        f"{asked}{num_blocks} KV blocks of {layout.block_bytes} bytes hold a sequence of "
        f"{pool_limit} tokens: set num_blocks to at least {needed} (kv_cache_memory_bytes "
        f"{needed * layout.block_bytes}), or a larger share of the free memory{fitting}"
    )


def _free_bytes(config: EngineConfig, num_ranks: int) -> int:
    """Return what this rank may take: of a host's memory its part, of a device's all."""
    device = torch.device(config.device)
    if device.type == "cpu":
        available = psutil.virtual_memory().available
        return int(available * config.cpu_memory_utilization) // num_ranks
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * config.gpu_memory_utilization)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
