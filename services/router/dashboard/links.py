"""Transfers of blocks between workers, as finished requests report them."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from services.router.workers.timing.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.dashboard.recent import RequestRow

MAX_LINKS = 256
#: Older transfers hardly count in a rate.
WINDOW_S = 30.0
#: A link without a transfer for this time is not shown.
SHOWN_S = 300.0


class LinkRow(msgspec.Struct, kw_only=True):
    """Transfers from one worker to another."""

    source: str
    target: str
    connector: str
    num_transfers: int
    total_bytes: int
    #: Over the last half minute.
    bytes_per_s: float
    #: Bytes per second of transfer time; None without transfer time.
    speed: float | None
    #: Time since the last transfer.
    idle_s: float


@dataclass(slots=True)
class _Link:
    num_transfers: int = 0
    total_bytes: int = 0
    recent_bytes: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    recent_ms: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    last_s: float = 0.0


class Links:
    """The links that were used last."""

    def __init__(
        self, max_links: int = MAX_LINKS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_links = max_links
        self._clock = clock
        self._links: OrderedDict[tuple[str, str, str], _Link] = OrderedDict()

    def add(self, row: RequestRow) -> None:
        """Add an ended request: its transfer from the prefill worker, its fetch from a peer."""
        if row.transfer_bytes and row.prefill:
            self._note(row.prefill, row.decode, row.connector, row.transfer_bytes, row.transfer_ms)
        if row.fetch_bytes and row.fetch_source:
            target = row.prefill or row.decode
            self._note(row.fetch_source, target, "prefix fetch", row.fetch_bytes, row.fetch_ms)

    def rows(self) -> list[LinkRow]:
        """Return a row per link that was used within SHOWN_S, most bytes per second first."""
        now_s = self._clock()
        rows = [
            _row(key, link, now_s)
            for key, link in self._links.items()
            if now_s - link.last_s < SHOWN_S
        ]
        return sorted(rows, key=lambda row: -row.bytes_per_s)

    def _note(self, source: str, target: str, connector: str, num_bytes: int, ms: float) -> None:
        key = (source, target, connector)
        link = self._links.setdefault(key, _Link())
        self._links.move_to_end(key)
        if len(self._links) > self._max_links:
            self._links.popitem(last=False)
        now_s = self._clock()
        link.num_transfers += 1
        link.total_bytes += num_bytes
        link.recent_bytes.add(num_bytes, now_s)
        link.recent_ms.add(ms, now_s)
        link.last_s = now_s


def _row(key: tuple[str, str, str], link: _Link, now_s: float) -> LinkRow:
    source, target, connector = key
    num_bytes, ms = link.recent_bytes.total(now_s), link.recent_ms.total(now_s)
    return LinkRow(
        source=source,
        target=target,
        connector=connector,
        num_transfers=link.num_transfers,
        total_bytes=link.total_bytes,
        bytes_per_s=round(num_bytes / WINDOW_S, 1),
        speed=round(num_bytes / ms * 1000, 1) if ms else None,
        idle_s=round(now_s - link.last_s, 1),
    )
