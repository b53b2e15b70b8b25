"""The hashes that prefix lookup gained and lost, for followers of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shared.kv.identity import group_of
from shared.kv.tier import BlockTier


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChange:
    """Keys that became visible to prefix lookup, or were removed. Changes apply in order.

    Within one change `cleared` comes first, then the others in any order: no hash is in `stored`
    and in `removed` of the same change. A hash of several blocks is stored with the first copy and
    removed with the last. Each change is about one tier: another tier may have the same hash.
    """

    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    cleared: bool = False
    tier: BlockTier = BlockTier.DEVICE

    def of_group(self, number: int) -> CacheChange:
        """Return the part about one group of layers; see `identity.block_key`."""
        return replace(
            self,
            stored=tuple(key for key in self.stored if group_of(key) == number),
            removed=tuple(key for key in self.removed if group_of(key) == number),
        )


@dataclass(slots=True)
class _Draft:
    # Dicts for their order; the values are unused.
    stored: dict[bytes, None] = field(default_factory=dict)
    removed: dict[bytes, None] = field(default_factory=dict)
    cleared: bool = False

    def freeze(self, tier: BlockTier) -> CacheChange:
        return CacheChange(
            stored=tuple(self.stored),
            removed=tuple(self.removed),
            cleared=self.cleared,
            tier=tier,
        )


class ChangeLog:
    """Collects one tier's changes until `take` is called."""

    def __init__(self, tier: BlockTier = BlockTier.DEVICE) -> None:
        self.tier = tier
        self._done: list[CacheChange] = []
        self._draft = _Draft()

    def stored(self, block_hash: bytes) -> None:
        """Record that a hash became visible."""
        if block_hash in self._draft.removed:
            self._close_draft()
        self._draft.stored[block_hash] = None

    def removed(self, block_hash: bytes) -> None:
        """Record that a hash is gone."""
        if block_hash in self._draft.stored:
            self._close_draft()
        self._draft.removed[block_hash] = None

    def cleared(self) -> None:
        """Record that all hashes are gone: earlier changes are dropped."""
        self._done.clear()
        self._draft = _Draft(cleared=True)

    def take(self) -> list[CacheChange]:
        """Return the changes since the last call."""
        self._close_draft()
        done, self._done = self._done, []
        return done

    def _close_draft(self) -> None:
        draft = self._draft
        if draft.stored or draft.removed or draft.cleared:
            self._done.append(draft.freeze(self.tier))
            self._draft = _Draft()
