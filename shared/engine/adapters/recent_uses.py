"""How often each adapter was used lately, by which it is decided what leaves memory."""

from __future__ import annotations

#: Uses after which a use counts half, for each place in memory. Longer, and what was popular keeps
#: out what is; shorter, and one rare use drives out what is asked for all the time.
HALF_LIFE_PER_PLACE = 4


class RecentUses:
    """Counts of uses that fade with the number of later uses, so that no clock matters."""

    def __init__(self, num_places: int) -> None:
        """`num_places`: adapters that memory takes."""
        self._half_life = HALF_LIFE_PER_PLACE * num_places
        self._num_uses = 0
        #: By digest: its count, and the number of all uses when that was true.
        self._counts: dict[bytes, tuple[float, int]] = {}

    def add(self, digest: bytes) -> None:
        """Count a use."""
        self._num_uses += 1
        self._counts[digest] = (1.0 + self.of(digest), self._num_uses)

    def of(self, digest: bytes) -> float:
        """Return the count of an adapter; of one without a use, 0."""
        count, then = self._counts.get(digest, (0.0, self._num_uses))
        return float(count * 2.0 ** ((then - self._num_uses) / self._half_life))

    def forget(self, digest: bytes) -> None:
        """Drop the count of an adapter that is no longer known."""
        self._counts.pop(digest, None)
