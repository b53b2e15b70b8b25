"""One worker's unfinished requests, and the expected time until they are finished."""

from __future__ import annotations

from collections import OrderedDict

from services.router.workers.recent import Recent

#: A late prompt is expected to need this share of its delay in addition. So a worker that hangs
#: looks worse with time, instead of looking idle.
LATE_SHARE = 0.5
#: Time for which work counts in a worker's share of all work. Long enough for many requests, so
#: that a few large ones do not make a worker look hot.
RECENT_WINDOW_S = 60.0


class Work:
    """One worker's part of the router's book. Prompts are computed in order of arrival."""

    __slots__ = (
        "_apart",
        "_apart_us",
        "_head_since_s",
        "_prompts",
        "_queue_us",
        "_recent_ms",
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

    def add_prompt(
        self,
        key: int,
        num_tokens: int,
        expected_ms: float,
        now_s: float,
        *,
        waits_apart: bool = False,
    ) -> None:
        """Add a prompt that was sent to the worker and should take `expected_ms` to compute.

        `waits_apart`: the prompt may wait for its grammar first. Other prompts do not wait with it,
        and it never counts as late.
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
        self._recent_ms.add(expected_ms, now_s)
        self.num_waiting_tokens += num_tokens

    def end_prompt(self, key: int, now_s: float) -> None:
        """Remove a prompt whose first token has arrived or never will. Ignores unknown keys."""
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
        return len(self._prompts) + len(self._apart)

    def queue_ms(self, now_s: float) -> float:
        """Return the expected milliseconds until all prompts at the worker are computed."""
        if not self._prompts:
            return self._apart_us / 1000
        head_us = next(iter(self._prompts.values()))[1]
        left_us = head_us - (now_s - self._head_since_s) * 1e6
        if left_us < 0:
            left_us *= -LATE_SHARE
        return (self._apart_us + self._queue_us - head_us + left_us) / 1000

    def recent_ms(self, now_s: float) -> float:
        """Return the recent work of the worker [ms]; older work fades."""
        return self._recent_ms.total(now_s)
