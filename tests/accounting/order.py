"""Which worker runs which file, and when.

A file stays on one worker, so that what its tests share is made once. End-to-end tests wait more
than they compute, and unit tests do the opposite: every second worker begins with the former, the
others with the latter, and they meet in the middle, where the smallest files are.

xdist asks behind each message which tests are left, and counts all that a worker was ever given.
It looks for each test's number among all tests. Here complete files are forgotten, and numbers are
in a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from tests.accounting.tiers import tier_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdist.workermanage import WorkerController

_FIRST = ("e2e", "composition", "fuzz", "gpu", "")
_LAST = ("integration", "unit")


class MeetingInTheMiddle(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """`--dist loadfile` from both ends."""

    def schedule(self) -> None:
        """Order the files the first time; later, as new workers come, only hand them out."""
        self.config.option.loadscopereorder = True
        super().schedule()

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Keep what a worker has found."""
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Numbered(collection)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Note that a worker has run a test."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        files = self.assigned_work.get(node, {})
        if scope in files and all(files[scope].values()):
            del files[scope]

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = (min if _begins_with_e2e(node) else max)(self.workqueue, key=self._place)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _place(self, scope: str) -> tuple[int, int]:
        """From the end-to-end test's end; the file with the most tests is the outermost."""
        tier, num_tests = tier_of(scope), len(self.workqueue[scope])
        if tier in _LAST:
            return 1 + _LAST.index(tier), num_tests
        return -_FIRST[::-1].index(tier), -num_tests


class Numbered(list[str]):
    """A list that knows the place of each name; it does not change."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: len(self) - 1 - at for at, name in enumerate(reversed(self))}

    def index(self, name: str, *_: object) -> int:  # type: ignore[override]
        """Return the place of the first one with this name."""
        return self._places[name]


def _begins_with_e2e(node: WorkerController) -> bool:
    return int(node.gateway.id.removeprefix("gw")) % 2 == 0
