"""The last 15 minutes in steps of five seconds. Its size does not depend on the load."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from services.router.dashboard.sample import Sample, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from services.router.watch.observer import RequestEnd

STEP_S = 5
NUM_POINTS = 180
#: Number of sampled values per step, for percentiles.
MAX_VALUES = 256
#: Number of steps of "the last minute".
MINUTE = 12


class Point(msgspec.Struct, kw_only=True):
    """One step. Times are None without a measurement; shares are in 0..1."""

    #: Unix time at which the step begins.
    at_s: int
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    #: Mean of all gaps between tokens, and 99th percentile of the requests' mean gaps.
    itl_mean_ms: float | None = None
    itl_p99_ms: float | None = None
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    hit_rate: float | None = None
    #: Maximum within the step.
    num_running: int = 0
    num_queued: int = 0
    #: Number within the step.
    num_failed: int = 0
    num_replays: int = 0
    #: Share of each worker's KV pool that sequences hold.
    kv_used: dict[str, float] = msgspec.field(default_factory=dict)


class Minute(msgspec.Struct, kw_only=True):
    """The last minute in total."""

    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    hit_rate: float | None
    requests_per_s: float
    tokens_per_s: float
    num_failed: int
    num_replays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Values read once a second. All but the first three and `kv_used` only grow."""

    num_running: int = 0
    num_queued: int = 0
    kv_used: Mapping[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_gaps: int = 0
    gaps_s: float = 0.0
    num_replays: int = 0


@dataclass(slots=True)
class _Step:
    """The present step, and what the last minute needs of a step."""

    at_s: int
    began_s: float
    before: Gauges
    ttft_ms: Sample = field(default_factory=lambda: Sample(MAX_VALUES))
    itl_ms: Sample = field(default_factory=lambda: Sample(MAX_VALUES))
    num_ended: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_running: int = 0
    num_queued: int = 0
    latest: Gauges = field(default_factory=Gauges)
    took_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.latest.num_tokens - self.before.num_tokens

    @property
    def num_replays(self) -> int:
        return self.latest.num_replays - self.before.num_replays

    def look(self, gauges: Gauges, now_s: float) -> None:
        self.latest, self.took_s = gauges, now_s - self.began_s
        self.num_running = max(self.num_running, gauges.num_running)
        self.num_queued = max(self.num_queued, gauges.num_queued)

    def point(self) -> Point:
        per_s = 1 / max(1.0, self.took_s)
        num_gaps = self.latest.num_gaps - self.before.num_gaps
        gaps_ms = (self.latest.gaps_s - self.before.gaps_s) * 1000
        return Point(
            at_s=self.at_s,
            ttft_p50_ms=_rounded(percentile(self.ttft_ms.values, 0.5)),
            ttft_p99_ms=_rounded(percentile(self.ttft_ms.values, 0.99)),
            itl_mean_ms=_rounded(gaps_ms / num_gaps) if num_gaps else None,
            itl_p99_ms=_rounded(percentile(self.itl_ms.values, 0.99)),
            requests_per_s=round(self.num_ended * per_s, 2),
            tokens_per_s=round(self.num_tokens * per_s, 1),
            prompt_tokens_per_s=round(self.num_prompt_tokens * per_s, 1),
            hit_rate=_share(self.num_cached_tokens, self.num_prompt_tokens),
            num_running=self.num_running,
            num_queued=self.num_queued,
            num_failed=self.num_failed,
            num_replays=self.num_replays,
            kv_used={name: round(share, 3) for name, share in self.latest.kv_used.items()},
        )


class History:
    """Filled by every request, and once a second by the state of the router."""

    def __init__(
        self,
        gauges: Gauges | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin with `gauges`."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._closed: deque[Point] = deque(maxlen=NUM_POINTS - 1)
        self._minute: deque[_Step] = deque(maxlen=MINUTE - 1)
        self._step = self._begin(gauges or Gauges())

    def first_token(self, ttft_s: float) -> None:
        """Record the time to a request's first token."""
        self._step.ttft_ms.add(ttft_s * 1000)

    def ended(self, end: RequestEnd) -> None:
        """Record the end of a request."""
        usage = end.usage
        self.count(
            failed=end.failed,
            num_prompt_tokens=0 if usage is None else usage.prompt_tokens,
            num_cached_tokens=0 if usage is None else usage.cached_tokens,
            itl_ms=mean_itl_ms(end),
        )

    def count(
        self, *, failed: bool, num_prompt_tokens: int, num_cached_tokens: int, itl_ms: float | None
    ) -> None:
        """Count a request that has ended, with the tokens of its prompt if it was answered."""
        step = self._step
        step.num_ended += 1
        step.num_failed += failed
        step.num_prompt_tokens += num_prompt_tokens
        step.num_cached_tokens += num_cached_tokens
        if itl_ms is not None:
            step.itl_ms.add(itl_ms)

    def look(self, gauges: Gauges) -> None:
        """Record values that were read just now; call it once a second.

        The present step becomes a point of the history once it is STEP_S long.
        """
        self._step.look(gauges, self._clock())
        if self._wall_clock() >= self._step.at_s + STEP_S:
            self._closed.append(self._step.point())
            self._minute.append(self._step)
            self._step = self._begin(gauges)

    def points(self) -> list[Point]:
        """Return all points, oldest first; the last one is the present step."""
        return [*self._closed, *self._under_way()]

    def newest(self) -> list[Point]:
        """Return the points that may have changed within the last second."""
        return [*list(self._closed)[-1:], *self._under_way()]

    def minute(self) -> Minute:
        """Return the totals of the last minute."""
        steps = [*self._minute, self._step]
        ttft_ms = list(chain.from_iterable(step.ttft_ms.values for step in steps))
        itl_ms = chain.from_iterable(step.itl_ms.values for step in steps)
        per_s = 1 / max(1.0, sum(step.took_s for step in steps))
        return Minute(
            ttft_p50_ms=_rounded(percentile(ttft_ms, 0.5)),
            ttft_p99_ms=_rounded(percentile(ttft_ms, 0.99)),
            itl_p50_ms=_rounded(percentile(itl_ms, 0.5)),
            hit_rate=_share(
                sum(step.num_cached_tokens for step in steps),
                sum(step.num_prompt_tokens for step in steps),
            ),
            requests_per_s=round(sum(step.num_ended for step in steps) * per_s, 2),
            tokens_per_s=round(sum(step.num_tokens for step in steps) * per_s, 1),
            num_failed=sum(step.num_failed for step in steps),
            num_replays=sum(step.num_replays for step in steps),
        )

    def _begin(self, gauges: Gauges) -> _Step:
        at_s = int(self._wall_clock() // STEP_S * STEP_S)
        return _Step(at_s, self._clock(), before=gauges, latest=gauges)

    def _under_way(self) -> list[Point]:
        # In the first seconds a rate would be inaccurate.
        return [self._step.point()] if self._step.took_s else []


def mean_itl_ms(end: RequestEnd) -> float | None:
    """Return the mean time between tokens [ms]; None at one token per answer or less."""
    usage, timings = end.usage, end.timings
    if usage is None or timings is None:
        return None
    num_tokens_each = usage.completion_tokens / end.request.params.n
    return timings.decode_ms / (num_tokens_each - 1) if num_tokens_each > 1 else None


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 2)
