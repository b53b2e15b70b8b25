"""A peer that may hold a longer prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import InvalidRequestError
from shared.rpc.wire import worker_id_from_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.v1 import common_pb2
    from shared.identity import WorkerId


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """A claim, which may be stale or wrong: the peer has this many leading blocks of the prompt."""

    worker: WorkerId
    address: str
    num_blocks: int


def sources_from_wire(messages: Iterable[common_pb2.PrefixSource]) -> tuple[PrefixSource, ...]:
    """Return the valid hints; one without a valid worker or address is skipped."""
    sources = []
    for message in messages:
        try:
            worker = worker_id_from_wire(message.worker)
        except InvalidRequestError:
            continue
        if message.address:
            sources.append(PrefixSource(worker, message.address, message.num_blocks))
    return tuple(sources)
