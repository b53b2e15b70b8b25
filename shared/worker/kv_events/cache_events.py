"""One engine's cache changes as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.kv.group_rules import GroupKind
from shared.kv.identity import HASH_BYTES, group_of
from shared.kv.tier import BlockTier
from shared.worker.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.kv.change_log import CacheChange
    from shared.kv.content_log import ContentLog
    from shared.kv.layout import KVLayout
    from shared.worker.kv_events.events import Event

_HASH_MASK = 2**64 - 1
_MEDIUMS = {BlockTier.DEVICE: "GPU", BlockTier.HOST: "CPU", BlockTier.DISK: "STORAGE"}
#: vLLM's words, by which routers tell prefixes from windows and states.
_KINDS = {
    GroupKind.FULL: "full_attention",
    GroupKind.LATENT: "mla_attention",
    GroupKind.WINDOW: "sliding_window",
    GroupKind.CHUNK: "chunked_local_attention",
    GroupKind.STATE: "mamba",
}


class CacheEvents:
    """Turns changes into events; takes the blocks' contents from `contents`."""

    def __init__(
        self,
        contents: ContentLog,
        *,
        layout: KVLayout,
        adapter_name: Callable[[bytes], str | None] = lambda _: None,
    ) -> None:
        self._contents = contents
        self._layout = layout
        self._adapter_name = adapter_name

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
                yield BlockRemoved(
                    block_hashes=[_short(key) for key in part.removed],
                    medium=medium,
                    group_idx=group,
                )
            yield from self._runs(part, group)

    def _runs(self, change: CacheChange, number: int) -> Iterator[BlockStored]:
        """Yield one event per run of consecutive blocks of a group."""
        group = self._layout.groups[number]
        is_window = group.kind is GroupKind.WINDOW
        run: BlockStored | None = None
        last: bytes | None = None
        for block_hash in change.stored:
            is_device = change.tier is BlockTier.DEVICE
            content = self._contents.take(block_hash) if is_device else None
            parent, tokens, adapter = (None, (), b"") if content is None else content
            if run is None or parent is None or parent != last:
                if run is not None:
                    yield run
                run = BlockStored(
                    block_hashes=[],
                    parent_block_hash=None if parent is None else _short(parent),
                    token_ids=[],
                    block_size=self._layout.block_size,
                    lora_id=None,
                    medium=_MEDIUMS[change.tier],
                    lora_name=self._adapter_name(adapter) if adapter else None,
                    group_idx=number,
                    kv_cache_spec_kind=_KINDS[group.kind],
                    kv_cache_spec_sliding_window=group.window if is_window else None,
                )
            run.block_hashes.append(_short(block_hash))
            run.token_ids.extend(tokens)
            last = block_hash
        if run is not None:
            yield run


def _short(key: bytes) -> int:
    return int.from_bytes(key[:HASH_BYTES], "big") & _HASH_MASK
