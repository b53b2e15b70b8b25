"""The events in the format of vLLM 0.32: maps with their name as `type`, in an array for a batch.

Consumers written for the arrays of vLLM before 0.24 alone cannot read them.

A block's hash is the low 64 bits of ours, which is not vLLM's hash of the same tokens: consumers
that hash themselves use the tokens, and vLLM's own consumers treat hashes as opaque. Blocks of
lower tiers come without tokens and parent, as vLLM's do. Salts and tenants are not published
(`extra_keys`). Blocks that an adapter computed have a name of it.
"""

from __future__ import annotations

import msgspec


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True, kw_only=True):
    """Blocks of one sequence became visible, in order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    #: Number of the group of layers, and what its layers read, in vLLM's words.
    group_idx: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True, kw_only=True):
    """Blocks were removed."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True):
    """The cache was cleared, in all tiers."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """The events of one time."""

    ts: float
    events: list[Event]
    #: Each worker publishes at endpoints of its own.
    data_parallel_rank: int = 0
