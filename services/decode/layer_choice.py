"""Whether a prompt's KV comes by layers from a prefill worker."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.decode.prefill_attempt import HandOffReport
    from shared.identity import WorkerId

#: By layers from here on: the wait for KV behind the first token, in parts of the computation.
WORTH_IT = 0.1
#: Weight of the newest hand-off.
_NEWEST = 0.25
#: So many hand-offs by layers before one as a whole, which says what a wait would be.
_BETWEEN = 31
#: Workers that are remembered.
_MOST_WORKERS = 1024


class LayerMode(StrEnum):
    """When KV comes by layers."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class _Seen:
    #: Of hand-offs as a whole, newer ones weigh more: the wait in parts of the computation.
    wait_share: float
    num_by_layers: int = 0


class LayerChoice:
    """Learns from hand-offs as a whole what they wait for."""

    def __init__(self, mode: LayerMode) -> None:
        self._mode = mode
        #: By prefill worker, the latest one last.
        self._seen: OrderedDict[WorkerId, _Seen] = OrderedDict()

    def wants_layers(self, worker: WorkerId) -> bool:
        """Return whether the next hand-off from a worker comes by layers."""
        if self._mode is not LayerMode.AUTO:
            return self._mode is LayerMode.ON
        seen = self._seen.get(worker)
        if seen is None or seen.wait_share < WORTH_IT or seen.num_by_layers == _BETWEEN:
            return False
        seen.num_by_layers += 1
        return True

    def learn(self, worker: WorkerId, report: HandOffReport, *, by_layers: bool) -> None:
        """Take the times of a complete hand-off."""
        if by_layers or report.done is None or not report.done.compute_ms:
            return
        share = report.exposed_ms / report.done.compute_ms
        seen = self._seen.setdefault(worker, _Seen(share))
        seen.wait_share += _NEWEST * (share - seen.wait_share)
        seen.num_by_layers = 0
        self._seen.move_to_end(worker)
        if len(self._seen) > _MOST_WORKERS:
            self._seen.popitem(last=False)
