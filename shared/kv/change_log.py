"""The hashes that prefix lookup gained and lost, for those who follow the cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shared.kv.identity import group_of
from shared.kv.tier import BlockTier


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChange:
    """Keys that became visible to prefix lookup, or ceased to be. Changes apply in order.

    Within one change `cleared` comes first, then the rest in any order: no hash is in `stored` and
    in `removed` of the same change. A hash that lives in several blocks is stored with the first
    copy and removed with the last. All of it is about one tier: another may hold the same hash.
    """

    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    cleared: bool = False
    tier: BlockTier = BlockTier.DEVICE

    def of_group(self, number: int) -> CacheChange:
        """Return what of it is about one group of layers; see `identity.block_key`."""
        return replace(
            self,
            stored=tuple(key for key in self.stored if group_of(key) == number),
            removed=tuple(key for key in self.removed if group_of(key) == number),
        )


@dataclass(slots=True)
class _Draft:
    # Dicts for their order; the values mean nothing.
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
        """A hash became visible."""
        if block_hash in self._draft.removed:
            self._close_draft()
        self._draft.stored[block_hash] = None

    def removed(self, block_hash: bytes) -> None:
        """A hash is gone."""
        if block_hash in self._draft.stored:
            self._close_draft()
        self._draft.removed[block_hash] = None

    def cleared(self) -> None:
        """All hashes are gone: what was collected before no longer matters."""
        self._done.clear()
        self._draft = _Draft(cleared=True)

    def take(self) -> list[CacheChange]:
        """The changes since the last call."""
        self._close_draft()
        done, self._done = self._done, []
        return done

    def _close_draft(self) -> None:
        draft = self._draft
        if draft.stored or draft.removed or draft.cleared:
            self._done.append(draft.freeze(self.tier))
            self._draft = _Draft()
