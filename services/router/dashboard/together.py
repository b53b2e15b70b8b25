"""The pages of a router's processes as one: each tells the others once a second what is new."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from services.router.dashboard.recent import RequestRow  # noqa: TC001 read by msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.processes.process import RouterProcess

#: What processes of a router tell and ask each other.
_PAGE, _REQUEST = "page", "page request"
#: Requests of a process before those of another one.
NUMBERS = 1 << 24
#: Without a message for so long, a process has no running requests.
SILENT_S = 3.0
#: In a message: more are left out.
MAX_TIMES, MAX_ENDED = 256, 200


class SharedEnd(msgspec.Struct, kw_only=True):
    """A request that ended in another process."""

    row: RequestRow
    #: Whether its answers were complete: its tokens count.
    complete: bool
    transferred_hit_tokens: int = 0
    local_hit_tokens: int = 0


class Numbers(msgspec.Struct, kw_only=True):
    """Numbers of one process, or of several together."""

    # They fall when requests end.
    num_running: int = 0
    num_queued: int = 0
    num_queued_tokens: int = 0
    # They only grow.
    num_tokens: int = 0
    num_gaps: int = 0
    gaps_s: float = 0.0
    num_replays: int = 0

    def plus(self, other: Numbers, *, is_silent: bool = False) -> Numbers:
        """Return the sums. Of one that is silent only what cannot fall counts."""
        if is_silent:
            other = msgspec.structs.replace(other, num_running=0, num_queued=0, num_queued_tokens=0)
        names = Numbers.__struct_fields__
        return Numbers(**{name: getattr(self, name) + getattr(other, name) for name in names})


class PageShare(msgspec.Struct, kw_only=True):
    """What a process tells the others."""

    name: str
    numbers: Numbers
    ttft_s: list[float]
    ended: list[SharedEnd]


class PagesTogether:
    """The other processes' part of the page."""

    def __init__(
        self,
        process: RouterProcess,
        name: str,
        *,
        on_first_token: Callable[[float], None],
        on_end: Callable[[SharedEnd], None],
        detail: Callable[[int], bytes | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: of this process. The callables take what happened in other processes.

        detail: returns one of this process's requests as JSON.
        """
        self._process = process
        self._name = name
        self._on_first_token = on_first_token
        self._on_end = on_end
        self._detail = detail
        self._clock = clock
        self._ttft_s: list[float] = []
        self._ended: list[SharedEnd] = []
        #: By name, with the time at which it came.
        self._last: dict[str, tuple[Numbers, float]] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(PageShare).decode
        process.on_order(_PAGE, self._take)
        process.on_ask(_REQUEST, self._answer)

    @staticmethod
    def first_number() -> int:
        """Return the number behind which this process counts its requests.

        A browser asks for a request over any connection, so of any process.
        """
        return os.getpid() * NUMBERS

    def first_token(self, ttft_s: float) -> None:
        """Note the time to a first token in this process."""
        if len(self._ttft_s) < MAX_TIMES:
            self._ttft_s.append(ttft_s)

    def ended(self, end: SharedEnd) -> None:
        """Note a request of this process that has ended."""
        if len(self._ended) < MAX_ENDED:
            self._ended.append(end)

    def exchange(self, own: Numbers) -> Numbers:
        """Tell the others what is new here; return the numbers of all processes."""
        share = PageShare(name=self._name, numbers=own, ttft_s=self._ttft_s, ended=self._ended)
        self._process.order(_PAGE, self._encode(share))
        self._ttft_s, self._ended = [], []
        return self.whole(own)

    def whole(self, own: Numbers) -> Numbers:
        """Return the numbers of all processes."""
        silent_s = self._clock() - SILENT_S
        for numbers, at_s in self._last.values():
            own = own.plus(numbers, is_silent=at_s < silent_s)
        return own

    async def find(self, number: int) -> bytes | None:
        """Return a request of another process as JSON; None if it is no longer kept."""
        answers = await self._process.ask_others(_REQUEST, number)
        return answers[0] if answers else None

    def _take(self, body: bytes) -> None:
        share = self._decode(body)
        self._last[share.name] = share.numbers, self._clock()
        for ttft_s in share.ttft_s:
            self._on_first_token(ttft_s)
        for end in share.ended:
            self._on_end(end)

    async def _answer(self, number: int) -> bytes | None:
        return self._detail(number)
