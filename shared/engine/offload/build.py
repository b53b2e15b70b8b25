"""The tiers below an engine's pool, made from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from shared.engine.memory.kv_staging import KVStaging
from shared.engine.offload.copies import MemoryCopies, StagedCopies
from shared.engine.offload.disk.block_folder import BlockFolder
from shared.engine.offload.disk.tier import DiskTier
from shared.engine.offload.group_copies import GroupCopies
from shared.engine.offload.landings import SlotLandings
from shared.engine.offload.loads import PrefixLoads
from shared.engine.offload.offload import KVOffload
from shared.engine.offload.threads import TierThreads
from shared.engine.offload.tier_set import TierSet
from shared.errors import ConfigError
from shared.kv.offload.load_rule import LoadRule
from shared.kv.offload.manager import BlockOffloadManager
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.memory.arena import KVArena
    from shared.engine.offload.copies import BlockCopies
    from shared.engine.settings.engine import EngineConfig
    from shared.kv.block_pool import BlockPool
    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory
    from shared.kv.split import KVSplit

_GIB = 1 << 30
#: Copies of evicted blocks that wait for the disk: enough to keep a fast disk busy.
_MAX_PENDING_BYTES = 64 << 20


def build_offload(
    config: EngineConfig,
    layout: KVLayout,
    arena: KVArena,
    pool: BlockPool,
    *,
    namespace: bytes,
    memories: Sequence[KVMemory],
    split: KVSplit,
) -> KVOffload | None:
    """Return the tiers, with their threads running; None if there are none.

    layout: of whole blocks, which the tiers have. memories, split: of the ranks of this host.

    Raises:
        ConfigError: a size is too small or too large, or the folder cannot be used.
    """
    if not config.kv_offload_host_gib:
        return None
    num_slots = _num_blocks(config.kv_offload_host_gib, layout.block_bytes, "kv_offload_host_gib")
    num_bytes, available = num_slots * layout.block_bytes, psutil.virtual_memory().available
    if num_bytes > available:
        raise ConfigError(
            f"kv_offload_host_gib is {config.kv_offload_host_gib:g}, but {available / _GIB:.2f} "
            "GiB of host memory are available"
        )
    folder = None
    if config.kv_offload_disk_dir is not None:
        folder = BlockFolder.open(
            Path(config.kv_offload_disk_dir),
            namespace,
            layout,
            packs=config.kv_offload_disk_packing,
        )
    try:
        disk = None if folder is None else _disk_tier(config, folder)
        copies = _copies(arena, layout, memories, split, num_slots)
        threads = TierThreads(copies, folder)
    except ConfigError:
        if folder is not None:
            folder.close()
        raise
    policy = config.kv_offload_policy
    host = BlockOffloadManager(num_slots, tier=BlockTier.HOST, policy=policy)
    rule = LoadRule(block_size=layout.block_size, always=config.kv_offload_always_load)
    tiers = TierSet(pool, host, disk, threads)
    loads = PrefixLoads(tiers, rule, layout.rules, block_size=layout.block_size)
    landings = SlotLandings(tiers, layout.rules, block_size=layout.block_size)
    threads.start()
    return KVOffload(tiers, loads, landings, rule, block_bytes=layout.block_bytes)


def forget_disk(config: EngineConfig, namespace: bytes) -> None:
    """Delete what an engine that is closed left on disk, if these settings have a disk tier."""
    if config.kv_offload_disk_dir is not None:
        BlockFolder.forget(Path(config.kv_offload_disk_dir), namespace)


def _disk_tier(config: EngineConfig, folder: BlockFolder) -> DiskTier:
    num_files = _num_blocks(config.kv_offload_disk_gib, folder.file_bytes, "kv_offload_disk_gib")
    disk = DiskTier(
        folder,
        BlockOffloadManager(num_files, tier=BlockTier.DISK, policy=config.kv_offload_policy),
        max_pending_writes=max(16, _MAX_PENDING_BYTES // folder.file_bytes),
    )
    disk.restore()
    return disk


def _copies(
    arena: KVArena,
    layout: KVLayout,
    memories: Sequence[KVMemory],
    split: KVSplit,
    num_slots: int,
) -> BlockCopies:
    if split.size > 1:
        return GroupCopies(layout, split, memories, num_slots)
    if arena.memory is not None:
        return MemoryCopies(arena.memory, num_slots)
    return StagedCopies(KVStaging(arena.whole, layout, num_slots))


def _num_blocks(gib: float, block_bytes: int, name: str) -> int:
    num = int(gib * _GIB) // block_bytes
    if num < 1:
        raise ConfigError(
            f"{name} is {gib:g}, which does not hold one KV block of {block_bytes} bytes"
        )
    return num
