"""One engine's cache changes as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shared.kv.identity import HASH_BYTES, group_of
from shared.kv.tier import BlockTier
from shared.worker.kv_events.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    GroupBlockRemoved,
    GroupBlockStored,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.kv.change_log import CacheChange
    from shared.kv.content_log import ContentLog
    from shared.worker.kv_events.events import Event

_HASH_MASK = 2**64 - 1
_MEDIUMS = {BlockTier.DEVICE: "GPU", BlockTier.HOST: "CPU", BlockTier.DISK: "STORAGE"}


class CacheEvents:
    """Turns changes into events; takes the blocks' contents from `contents`."""

    def __init__(
        self,
        contents: ContentLog,
        *,
        block_size: int,
        adapter_name: Callable[[bytes], str | None] = lambda _: None,
    ) -> None:
        self._contents = contents
        self._adapter_name = adapter_name
        self._block_size = block_size

    def of(self, change: CacheChange) -> Iterator[Event]:
        """Yield the events of a change, in order. Call it once for each change."""
        medium = _MEDIUMS[change.tier]
        if change.cleared and change.tier is BlockTier.DEVICE:
            yield AllBlocksCleared()
        for key in change.removed:
            self._contents.take(key)
        for group in sorted({group_of(key) for key in (*change.removed, *change.stored)}):
            part = change.of_group(group)
            if part.removed:
                gone = BlockRemoved([_short(key) for key in part.removed], medium)
                yield _of_removed(gone, group) if group else gone
            for run, adapter in self._runs(part):
                name = self._adapter_name(adapter) if adapter else None
                yield _of_stored(run, group, name)

    def _runs(self, change: CacheChange) -> Iterator[tuple[BlockStored, bytes]]:
        """Yield one event per run of consecutive blocks, and the digest of their adapter."""
        adapter = b""
        run: BlockStored | None = None
        last: bytes | None = None
        for block_hash in change.stored:
            is_device = change.tier is BlockTier.DEVICE
            content = self._contents.take(block_hash) if is_device else None
            parent, tokens, own = (None, (), b"") if content is None else content
            if run is None or parent is None or parent != last:
                if run is not None:
                    yield run, adapter
                adapter = own
                run = BlockStored(
                    block_hashes=[],
                    parent_block_hash=None if parent is None else _short(parent),
                    token_ids=[],
                    block_size=self._block_size,
                    lora_id=None,
                    medium=_MEDIUMS[change.tier],
                )
            run.block_hashes.append(_short(block_hash))
            run.token_ids.extend(tokens)
            last = block_hash
        if run is not None:
            yield run, adapter


def _of_removed(event: BlockRemoved, group: int) -> GroupBlockRemoved:
    return GroupBlockRemoved(**msgspec.structs.asdict(event), group_idx=group)


def _of_stored(event: BlockStored, group: int, adapter_name: str | None) -> BlockStored:
    """Return the event in the shortest form that has all of it."""
    if not group and adapter_name is None:
        return event
    fields = msgspec.structs.asdict(event)
    return GroupBlockStored(**fields, lora_name=adapter_name, extra_keys=None, group_idx=group)


def _short(key: bytes) -> int:
    return int.from_bytes(key[:HASH_BYTES], "big") & _HASH_MASK
