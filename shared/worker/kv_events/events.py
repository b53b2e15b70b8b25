"""The events in vLLM's format: arrays that begin with their name, as in vLLM 0.9 to 0.14.

A block's hash is the low 64 bits of ours, which is not vLLM's hash of the same tokens: consumers
that hash themselves use the tokens, and vLLM's own consumers treat hashes as opaque. Blocks of
lower tiers come without tokens and parent, as vLLM's do. Events of layers beyond the first group
have its number (`group_idx`), and those of blocks that an adapter computed have a name of it.
"""

from __future__ import annotations

import msgspec


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Blocks of one sequence became visible, in order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class GroupBlockStored(BlockStored, tag="BlockStored"):
    """The same for an adapter, or a group of layers after the first: the longer form of later
    versions.
    """

    lora_name: str | None
    extra_keys: list[str] | None
    group_idx: int


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Blocks were removed."""

    block_hashes: list[int]
    medium: str | None


class GroupBlockRemoved(BlockRemoved, tag="BlockRemoved"):
    """Blocks of a group of layers after the first were removed."""

    group_idx: int


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """The cache was cleared, in all tiers."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """The events of one time."""

    ts: float
    events: list[Event]
