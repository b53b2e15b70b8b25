"""One worker's unfinished requests, and the expected time until they are finished."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import NamedTuple

from services.router.workers.timing.recent import Recent

#: A late prompt is expected to need this share of its delay in addition. So a worker that hangs
#: looks worse with time, instead of looking idle.
LATE_SHARE = 0.5
#: Time for which work counts in a worker's share of all work. Long enough for many requests, so
#: that a few large ones do not make a worker look hot.
RECENT_WINDOW_S = 60.0
#: The same for the share of its time in which a worker computes prompts: it should follow a change
#: of the load.
SHARE_WINDOW_S = 15.0
#: Of one that computes prompts all the time; sequences that decode there get on all the same.
MOST_SHARE = 0.8


class WorkReport(NamedTuple):
    """A worker's part of the books of other processes of the same router."""

    num_requests: int = 0
    num_decoding: int = 0
    num_coming: int = 0
    num_held_tokens: int = 0
    num_waiting_tokens: int = 0
    num_prompts: int = 0
    queue_ms: float = 0.0
    prompt_share: float = 0.0
    computed_ms: float = 0.0
    #: Bounds on the time between tokens, and how many sequences have each.
    bounds: tuple[tuple[float, int], ...] = ()


NOTHING = WorkReport()


class Work:
    """One worker's part of the router's book. Prompts are computed in order of arrival."""

    __slots__ = (
        "_apart",
        "_apart_us",
        "_bounds",
        "_computed_elsewhere_ms",
        "_computed_ms",
        "_elsewhere",
        "_first_s",
        "_head_since_s",
        "_prompts",
        "_queue_us",
        "_recent_ms",
        "_share_ms",
        "_works",
        "num_coming",
        "num_decoding",
        "num_held_tokens",
        "num_requests",
        "num_waiting_tokens",
    )

    def __init__(self) -> None:
        #: Answers, and prompts of answers elsewhere, that have not ended.
        self.num_requests = 0
        #: Sequences in its batch.
        self.num_decoding = 0
        #: Answers that it will write when their prompts are computed.
        self.num_coming = 0
        #: Tokens of those sequences, and of prompts that will join them.
        self.num_held_tokens = 0
        #: Prompt tokens sent whose first token has not come back.
        self.num_waiting_tokens = 0
        # Whole microseconds: sums of floats would not return to zero.
        self._prompts: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._queue_us = 0
        #: Prompts that may wait for something else before they are computed.
        self._apart: dict[int, tuple[int, int]] = {}
        self._apart_us = 0
        self._head_since_s = 0.0
        self._recent_ms = Recent(RECENT_WINDOW_S)
        self._share_ms = Recent(SHARE_WINDOW_S)
        self._first_s: float | None = None
        #: Computation alone of prompts that have not ended, and of all that were computed.
        self._works: dict[int, float] = {}
        self._computed_ms = 0.0
        #: Bounds on the time between tokens of its sequences.
        self._bounds: Counter[float] = Counter()
        #: What is in all other numbers, and is of other processes.
        self._elsewhere = NOTHING
        self._computed_elsewhere_ms = 0.0

    def own(self, now_s: float) -> WorkReport:
        """Return what this process has booked."""
        other = self._elsewhere
        bounds = self._bounds - Counter(dict(other.bounds)) if other.bounds else self._bounds
        return WorkReport(
            self.num_requests - other.num_requests,
            self.num_decoding - other.num_decoding,
            self.num_coming - other.num_coming,
            self.num_held_tokens - other.num_held_tokens,
            self.num_waiting_tokens - other.num_waiting_tokens,
            len(self._prompts) + len(self._apart),
            self.queue_ms(now_s) - other.queue_ms,
            self._own_share(now_s),
            self._computed_ms - self._computed_elsewhere_ms,
            tuple(sorted(bounds.items())),
        )

    def put_elsewhere(self, report: WorkReport) -> None:
        """Count what other processes have booked, in place of what they had before."""
        before, self._elsewhere = self._elsewhere, report
        self.num_requests += report.num_requests - before.num_requests
        self.num_decoding += report.num_decoding - before.num_decoding
        self.num_coming += report.num_coming - before.num_coming
        self.num_held_tokens += report.num_held_tokens - before.num_held_tokens
        self.num_waiting_tokens += report.num_waiting_tokens - before.num_waiting_tokens
        # What was computed stays so when the process ends that had booked it.
        computed_ms = max(0.0, report.computed_ms - before.computed_ms)
        self._computed_ms += computed_ms
        self._computed_elsewhere_ms += computed_ms
        self._bounds.subtract(dict(before.bounds))
        self._bounds.update(dict(report.bounds))
        self._bounds = +self._bounds

    def add_prompt(
        self,
        key: int,
        num_tokens: int,
        expected_ms: float,
        now_s: float,
        *,
        work_ms: float | None = None,
        waits_apart: bool = False,
    ) -> None:
        """Add a prompt that was sent to the worker and should take `expected_ms` to compute.

        `work_ms`: its computation alone, without the sequences that decode beside it; None: the
        same. `waits_apart`: the prompt may wait for its grammar first. Other prompts do not wait
        with it, and it never counts as late.
        """
        expected_us = round(expected_ms * 1000)
        if waits_apart:
            self._apart[key] = (num_tokens, expected_us)
            self._apart_us += expected_us
        else:
            if not self._prompts:
                self._head_since_s = now_s
            self._prompts[key] = (num_tokens, expected_us)
            self._queue_us += expected_us
        if work_ms is None:
            work_ms = expected_ms
        if self._first_s is None:
            self._first_s = now_s
        self._works[key] = work_ms
        self._recent_ms.add(work_ms, now_s)
        self._share_ms.add(work_ms, now_s)
        self.num_waiting_tokens += num_tokens

    def end_prompt(self, key: int, now_s: float) -> None:
        """Remove a prompt whose first token has arrived or never will. Ignores unknown keys."""
        self._computed_ms += self._works.pop(key, 0.0)
        if key in self._apart:
            num_tokens, expected_us = self._apart.pop(key)
            self._apart_us -= expected_us
            self.num_waiting_tokens -= num_tokens
            return
        prompt = self._prompts.get(key)
        if prompt is None:
            return
        if next(iter(self._prompts)) == key:
            self._head_since_s = now_s
        del self._prompts[key]
        self.num_waiting_tokens -= prompt[0]
        self._queue_us -= prompt[1]

    @property
    def num_prompts(self) -> int:
        """Prompts sent whose first token has not come back."""
        return len(self._prompts) + len(self._apart) + self._elsewhere.num_prompts

    def queue_ms(self, now_s: float) -> float:
        """Return the expected milliseconds until all prompts at the worker are computed."""
        elsewhere_ms = self._elsewhere.queue_ms
        if not self._prompts:
            return self._apart_us / 1000 + elsewhere_ms
        head_us = next(iter(self._prompts.values()))[1]
        left_us = head_us - (now_s - self._head_since_s) * 1e6
        if left_us < 0:
            left_us *= -LATE_SHARE
        return (self._apart_us + self._queue_us - head_us + left_us) / 1000 + elsewhere_ms

    def recent_ms(self, now_s: float) -> float:
        """Return the recent work of the worker [ms]; older work fades."""
        return self._recent_ms.total(now_s)

    @property
    def computed_ms(self) -> float:
        """Expected computation of all prompts that have ended here."""
        return self._computed_ms

    def prompt_share(self, now_s: float) -> float:
        """Return the share of its time in which the worker computes prompts, lately."""
        return min(MOST_SHARE, self._own_share(now_s) + self._elsewhere.prompt_share)

    def _own_share(self, now_s: float) -> float:
        if self._first_s is None:
            return 0.0
        seen_s = max(1.0, now_s - self._first_s)
        window_ms = SHARE_WINDOW_S * 1000 * -math.expm1(-seen_s / SHARE_WINDOW_S)
        return min(MOST_SHARE, self._share_ms.total(now_s) / window_ms)

    def add_bound(self, max_itl_ms: float) -> None:
        """Note the bound of a sequence that was sent to the worker."""
        self._bounds[max_itl_ms] += 1

    def drop_bound(self, max_itl_ms: float) -> None:
        """Forget the bound of a sequence that has ended."""
        self._bounds[max_itl_ms] -= 1
        if not self._bounds[max_itl_ms]:
            del self._bounds[max_itl_ms]

    @property
    def bound_ms(self) -> float | None:
        """The tightest bound of its sequences on the time between tokens; None: they have none."""
        return min(self._bounds, default=None)

    @property
    def num_unbounded(self) -> int:
        """Sequences without a bound that decode, or will."""
        return max(0, self.num_decoding + self.num_coming - self._bounds.total())
