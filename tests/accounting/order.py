"""Which worker runs which file, and when.

A file stays on one worker, so that what its tests share is made once. End-to-end tests wait more
than they compute, and unit tests do the opposite: every second worker begins with the former, the
others with the latter, and they meet in the middle, where the smallest files are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from tests.accounting.tiers import tier_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_FIRST = ("e2e", "composition", "fuzz", "gpu", "")
_LAST = ("integration", "unit")


class MeetingInTheMiddle(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """`--dist loadfile` from both ends."""

    def schedule(self) -> None:
        """Order the files the first time; later, as new workers come, only hand them out."""
        self.config.option.loadscopereorder = True
        super().schedule()

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


def _begins_with_e2e(node: WorkerController) -> bool:
    return int(node.gateway.id.removeprefix("gw")) % 2 == 0
