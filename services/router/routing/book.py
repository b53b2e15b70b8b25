"""The router's own record of requests it has sent. Unlike polled load it is never out of date."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING

from services.router.routing.hashes import NO_HASHES
from services.router.routing.predicted import PredictedBlocks
from services.router.workers.timing.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.routing.base import Route
    from services.router.routing.hashes import BlockHashes
    from services.router.workers.adapter_use import AdapterUse
    from services.router.workers.endpoint import Endpoint

#: Earlier requests hardly count in the rate of arrivals.
ARRIVALS_WINDOW_S = 30.0


class ArrivalRate:
    """Requests per second, weighted to the most recent ones."""

    def __init__(self, window_s: float = ARRIVALS_WINDOW_S) -> None:
        self._window_s = window_s
        self._recent = Recent(window_s)
        self._first_s: float | None = None

    def note(self, now_s: float) -> None:
        """Count a request that arrived at `now_s`."""
        if self._first_s is None:
            self._first_s = now_s
        self._recent.add(1.0, now_s)

    def per_s(self, now_s: float) -> float:
        """Return the present rate [1/s]; too low rather than too high within the first second."""
        if self._first_s is None:
            return 0.0
        seen_s = max(1.0, now_s - self._first_s)
        return self._recent.total(now_s) / (self._window_s * -math.expm1(-seen_s / self._window_s))


#: Tokens of an answer, before any has ended.
ANSWER_TOKENS_PRIOR = 100.0
#: Weight of that in answers: little, since the first one that ends knows better.
ANSWER_PRIOR_WEIGHT = 0.2
#: Least weight of an answer that ends in the mean; the first ones weigh more.
ANSWER_WEIGHT = 0.05


class Book:
    """Everything in flight: by worker in `Endpoint.work`, by block in `predicted`."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        predicted: PredictedBlocks | None = None,
    ) -> None:
        self.clock = clock
        self.predicted = predicted or PredictedBlocks()
        self.arrivals = ArrivalRate()
        #: Mean number of tokens of an answer, lately.
        self.answer_tokens = ANSWER_TOKENS_PRIOR
        self._num_answers = ANSWER_PRIOR_WEIGHT
        #: Called when a prompt has left a worker's queue.
        self.on_prompt_end: Callable[[], None] | None = None
        self._keys = itertools.count()

    def begin(
        self,
        route: Route,
        *,
        num_prompt_tokens: int,
        block_hashes: BlockHashes = NO_HASHES,
        waits_apart: bool = False,
        adapter: bytes = b"",
        max_itl_ms: float | None = None,
    ) -> Booking:
        """Book a request that is sent: its prompt is computed, then its answer is written.

        `waits_apart`: see `Work.add_prompt`. `adapter`: the digest of its adapter; empty: none.
        `max_itl_ms`: its bound on the time between tokens.
        """
        self.arrivals.note(self.clock())
        return Booking(
            self,
            route,
            num_prompt_tokens,
            block_hashes,
            next(self._keys),
            waits_apart=waits_apart,
            adapter=adapter,
            max_itl_ms=max_itl_ms,
        )

    def note_answer(self, num_tokens: int) -> None:
        """Count an answer that has ended."""
        self._num_answers += 1
        weight = max(ANSWER_WEIGHT, 1 / self._num_answers)
        self.answer_tokens += weight * (num_tokens - self.answer_tokens)

    def begin_follower(
        self,
        route: Route,
        *,
        num_prompt_tokens: int,
        adapter: bytes = b"",
        max_itl_ms: float | None = None,
    ) -> Booking:
        """Book a further answer to a prompt whose KV the decode worker holds already."""
        return Booking(
            self,
            route,
            num_prompt_tokens,
            NO_HASHES,
            None,
            adapter=adapter,
            max_itl_ms=max_itl_ms,
        )


class Booking:
    """The entry of a sequence in the book. `release` may be called twice, at any time."""

    def __init__(
        self,
        book: Book,
        route: Route,
        num_prompt_tokens: int,
        block_hashes: BlockHashes,
        key: int | None,
        *,
        waits_apart: bool = False,
        adapter: bytes = b"",
        max_itl_ms: float | None = None,
    ) -> None:
        """Make an entry. Without a `key` there is no prompt to compute."""
        now_s = book.clock()
        self._book = book
        self._decode = route.decode.work
        self._num_tokens = self._num_prompt_tokens = num_prompt_tokens
        self._key = key
        self._open = True
        self._decoding = False
        self._num_decoding_first = self._num_decoding_last = 0
        self._decode.num_requests += 1
        self._decode.num_held_tokens += num_prompt_tokens
        self._max_itl_ms = max_itl_ms
        if max_itl_ms is not None:
            self._decode.add_bound(max_itl_ms)
        computing: Endpoint = route.prefill[0] if route.prefill else route.decode
        self._computing = computing.work
        #: Sequences that decoded beside the prompt, at its beginning and at its end.
        self._beside = [self._computing.num_decoding]
        self._computed_first_ms = self._computed_last_ms = 0.0
        self._predictions = []
        self._adapter, self._begun_s = adapter, now_s
        self._adapter_uses = self._begin_adapter(route, computing, now_s, computes=key is not None)
        if key is None:
            self._begin_decoding()
            return
        self._decode.num_coming += 1
        estimate = route.estimate
        self._computing.add_prompt(
            key, num_prompt_tokens, estimate.prefill_ms, now_s,
            work_ms=estimate.work_ms, waits_apart=waits_apart,
        )  # fmt: skip
        if self._computing is not self._decode:
            self._computing.num_requests += 1
        for endpoint in {computing, route.decode}:
            own = block_hashes.get(endpoint.record.namespace, ())
            prediction = book.predicted.add(endpoint.record.worker, own, now_s)
            if prediction is not None:
                self._predictions.append(prediction)

    @property
    def num_decoding(self) -> float:
        """Mean of the decode worker's number of sequences at this one's beginning and end."""
        last = self._decode.num_decoding if self._open else self._num_decoding_last
        return (self._num_decoding_first + last) / 2

    @property
    def num_beside(self) -> float:
        """Mean number of sequences that decoded on the prompt's worker while it was computed."""
        return sum(self._beside) / len(self._beside)

    @property
    def prompts_ms(self) -> float:
        """Expected computation of others' prompts on the decode worker during this answer."""
        last_ms = self._decode.computed_ms if self._open else self._computed_last_ms
        return last_ms - self._computed_first_ms

    def add_tokens(self, count: int) -> None:
        """Record `count` new tokens; the first ones end the computation of the prompt."""
        if self._open and count:
            if self._key is not None:
                self._end_prompt(computed=True)
            self._num_tokens += count
            self._decode.num_held_tokens += count

    def end_prompt(self) -> None:
        """Record that the prompt is computed, of which nothing but a vector is wanted."""
        if self._open:
            self._end_prompt(computed=True)

    def release(self) -> None:
        """Remove the sequence, which has ended."""
        if self._open:
            self._end_prompt(computed=False)
            self._open = False
            self._num_decoding_last = self._decode.num_decoding
            self._computed_last_ms = self._decode.computed_ms
            if self._max_itl_ms is not None:
                self._decode.drop_bound(self._max_itl_ms)
            self._decode.num_requests -= 1
            self._decode.num_held_tokens -= self._num_tokens
            self._decode.num_decoding -= self._decoding
            if self._decoding:
                self._book.note_answer(self._num_tokens - self._num_prompt_tokens)
            now_s = self._book.clock()
            for use in self._adapter_uses:
                use.end(self._adapter, self._begun_s, now_s, served=self._decoding)

    def _begin_adapter(
        self, route: Route, computing: Endpoint, now_s: float, *, computes: bool
    ) -> list[AdapterUse]:
        """Note the adapter at the workers that need it."""
        if not self._adapter:
            return []
        uses = [route.decode.adapters]
        if computes and computing is not route.decode:
            uses.append(computing.adapters)
        for use in uses:
            use.begin(self._adapter, now_s)
        return uses

    def _end_prompt(self, *, computed: bool) -> None:
        if self._key is None:
            return
        now_s = self._book.clock()
        self._computing.end_prompt(self._key, now_s)
        self._beside.append(self._computing.num_decoding)
        self._key = None
        self._decode.num_coming -= 1
        if self._computing is not self._decode:
            self._computing.num_requests -= 1
        for use in self._adapter_uses[1:]:
            use.end(self._adapter, self._begun_s, now_s, served=computed)
        del self._adapter_uses[1:]
        for prediction in self._predictions:
            if computed:
                self._book.predicted.settle(prediction, now_s)
            else:
                self._book.predicted.drop(prediction)
        if computed:
            self._begin_decoding()
        if self._book.on_prompt_end is not None:
            self._book.on_prompt_end()

    def _begin_decoding(self) -> None:
        self._decoding = True
        self._decode.num_decoding += 1
        self._num_decoding_first = self._decode.num_decoding
        self._computed_first_ms = self._decode.computed_ms
