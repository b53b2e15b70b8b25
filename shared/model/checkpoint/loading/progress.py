"""What a load that takes long says meanwhile."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = structlog.get_logger(__name__)

#: Seconds between two lines.
EACH_S = 5.0
Item = TypeVar("Item")


def reported(tensors: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield the tensors, of which there are so many, and log every few seconds how far it is."""
    start = last = monotonic()
    for number, tensor in enumerate(tensors, start=1):
        yield tensor
        now = monotonic()
        if now - last >= EACH_S:
            log.info("weights_loading", tensors=number, of=total, seconds=round(now - start, 1))
            last = now
