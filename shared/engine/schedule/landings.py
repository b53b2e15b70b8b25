"""Prompts that a peer computes while the pool has no room: they are received in the host tier.

A waiting sequence leaves the queue when it has slots there, and comes back to its place when its
blocks have arrived. Then it is admitted like any prompt with a prefix in the tier.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from shared.engine.offload.landings import LandingRefusal, SlotLanding
from shared.engine.sequence.events import Landing
from shared.engine.sequence.sequence import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.engine.offload.landings import SlotLandings
    from shared.engine.schedule.waiting_queue import Rank, WaitingQueue
    from shared.engine.sequence.sequence import Sequence

#: Sequences that are tried in vain: those behind them have their turn when something has changed.
_MOST_PASSING = 16
#: Refusals that may be over in the next step.
_PASSING = frozenset({LandingRefusal.ON_THE_WAY, LandingRefusal.NO_SLOTS})


class Landings:
    """The sequences that a peer fills slots for, and those that wait with their blocks there."""

    def __init__(
        self,
        slots: SlotLandings | None,
        refusal: LandingRefusal | None,
        *,
        block_size: int,
        rank: Callable[[Sequence], Rank] | None,
    ) -> None:
        """`refusal`: why nothing may land, if so; there are `slots` otherwise. `rank`: the order of
        the queue; None: first come, first served.
        """
        self._slots = slots
        #: May be set in any thread before the first request.
        self.refusal = refusal if slots is None else refusal or slots.refusal
        self._block_size = block_size
        self._rank = rank
        #: Sequences whose slots a peer fills, or is about to.
        self.landing: dict[str, Sequence] = {}
        self._places: dict[str, SlotLanding] = {}
        #: In the queue, to be filled by a peer, and not refused for good.
        self._candidates: dict[str, Sequence] = {}
        #: By request: the reasons for which it was refused.
        self._refused: dict[str, set[LandingRefusal]] = {}
        self._news: list[Sequence] = []
        #: The state of the slots after the last try, unless there are new candidates.
        self._tried: tuple[int, int] | None = None
        #: Landings that ended, by outcome, and refused sequences, by reason.
        self.outcomes: Counter[str] = Counter({"received": 0, "failed": 0, "cancelled": 0})
        self.refusals: Counter[str] = Counter()
        #: Puts a sequence back into the queue; set by the scheduler.
        self.put_back: Callable[[Sequence], None] = lambda _: None

    @property
    def num_blocks(self) -> int:
        """Blocks of tokens that may be in slots at a time."""
        return 0 if self._slots is None or self.refusal is not None else self._slots.num_blocks

    @property
    def has_news(self) -> bool:
        """Whether `take_news` has something."""
        return bool(self._news)

    def note(self, seq: Sequence) -> None:
        """Record a sequence that was queued."""
        if seq.awaits_transfer:
            self._tried = None
            self._candidates[seq.request_id] = seq

    def offer(self, waiting: WaitingQueue) -> None:
        """Give sequences of the queue, for which the pool has no room, slots as far as there are
        some.
        """
        if self._slots is not None and self._slots.state == self._tried:
            return
        num_passing = 0
        for seq in list(self._in_order()):
            why = self._refuses(seq) or self._land(seq, waiting)
            if why is None:
                continue
            self._refuse(seq, why)
            num_passing += why in _PASSING
            if why is LandingRefusal.NO_SLOTS or num_passing == _MOST_PASSING:
                break
        if self._slots is not None:
            self._tried = self._slots.state

    def take_news(self) -> list[Landing]:
        """Return the landings whose slots peers may fill from now on."""
        news, self._news = self._news, []
        return [self._told(seq) for seq in news if seq.status is Status.LANDING]

    def end(
        self, seq: Sequence, *, received: bool, first_token: int | None, num_received: int | None
    ) -> None:
        """End a transfer; see `Scheduler.end_transfer`. The sequence goes back to the queue: at
        once, or when what has arrived is sealed.
        """
        num_tokens = seq.num_tokens if num_received is None else num_received
        seq.awaits_transfer = False
        self.outcomes["received" if received else "failed"] += 1
        if first_token is not None:
            seq.append_token(first_token)
        place = self._places[seq.request_id]
        if received and self._slots is not None:
            sealed = partial(self._sealed, seq)
            self._slots.seal(place, num_tokens // self._block_size, sealed)
        else:
            self._sealed(seq, is_good=False)

    def left(self, seq: Sequence) -> None:
        """Give up the slots of a sequence that has its blocks in the pool, or has ended."""
        self._candidates.pop(seq.request_id, None)
        self._refused.pop(seq.request_id, None)
        place = self._places.pop(seq.request_id, None)
        if place is not None and self._slots is not None:
            self._slots.release(place)
            self.outcomes["cancelled"] += seq.awaits_transfer
        seq.has_landed = False

    def abandon(self) -> None:
        """Forget all sequences; a peer may still write to their slots."""
        self.landing.clear()
        self._places.clear()
        self._candidates.clear()
        self._refused.clear()

    def _in_order(self) -> Iterable[Sequence]:
        if self._rank is None:
            return self._candidates.values()
        return sorted(self._candidates.values(), key=self._rank)

    def _refuses(self, seq: Sequence) -> LandingRefusal | None:
        """Return why this sequence can never land, if so."""
        if self.refusal is not None:
            return self.refusal
        if seq.is_computed_whole:
            return LandingRefusal.WHOLE_PROMPT
        return LandingRefusal.HIDDEN_STATES if seq.request.hidden is not None else None

    def _land(self, seq: Sequence, waiting: WaitingQueue) -> LandingRefusal | None:
        assert self._slots is not None, "nothing can land"
        hashes = seq.full_block_hashes(seq.num_tokens, self._block_size)
        place = self._slots.reserve(hashes, seq.num_tokens, partial(self._open, seq))
        if isinstance(place, LandingRefusal):
            return place
        del self._candidates[seq.request_id]
        waiting.remove(seq)
        seq.status = Status.LANDING
        self.landing[seq.request_id] = seq
        self._places[seq.request_id] = place
        return None

    def _open(self, seq: Sequence) -> None:
        self._news.append(seq)

    def _refuse(self, seq: Sequence, why: LandingRefusal) -> None:
        known = self._refused.setdefault(seq.request_id, set())
        if why not in known:
            known.add(why)
            self.refusals[why] += 1
        if why not in _PASSING:
            del self._candidates[seq.request_id]

    def _told(self, seq: Sequence) -> Landing:
        assert self._slots is not None, "nothing can land"
        place = self._places[seq.request_id]
        return Landing(
            request_id=seq.request_id,
            memory=self._slots.memory,
            tables=place.tables,
            num_cached_tokens=place.num_cached * self._block_size,
        )

    def _sealed(self, seq: Sequence, is_good: bool) -> None:
        """Put a sequence back into the queue, unless it has ended."""
        if seq.status is not Status.LANDING:
            return
        del self.landing[seq.request_id]
        if not is_good:
            self.left(seq)
        seq.has_landed = is_good
        seq.status = Status.WAITING
        self.put_back(seq)
