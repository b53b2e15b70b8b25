"""The places of a sequence's blocks in the tables of groups with states; all groups are alike."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StatePlaces:
    """See `StateTables`, which changes it."""

    #: That of the sequence's own blocks.
    own: int = 0
    #: Places at which checkpoints are wanted, ascending.
    wanted: list[int] = field(default_factory=list)
    #: Of these, the ones that have blocks whose states are not final.
    made: list[int] = field(default_factory=list)
    #: Groups, places and blocks: own blocks that have moved, before the runner knew any.
    left: list[tuple[int, int, int]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the blocks, which have been released."""
        self.made.clear()
        self.left.clear()
