"""The cost of a conversation's next turn if no worker that prefers prefill holds this prompt.

Handed over, a prompt is held by the worker that computed it and by the one that writes. Computed
where answers are written, it is held there alone: the next turn is computed beside others' answers,
or all of it anew, whichever costs less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from services.router.routing.estimator import HARM_WEIGHT
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.routing.base import Candidate, RoutingRequest
    from services.router.routing.book import Book
    from services.router.routing.places.placement import Placement

#: Before any turn could come back.
SHARE_PRIOR: Final = 0.5
#: Weight of a request in the means.
WEIGHT: Final = 1 / 10


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is held of a prompt that comes."""

    #: The largest part that one worker holds.
    share: float
    #: The least computation of the rest.
    rest_ms: float


def beginning(request: RoutingRequest, candidates: Sequence[Candidate]) -> Beginning:
    """Return what workers that may compute the prompt hold of it."""
    num_held = max(each.num_held_tokens for each in candidates)
    rest_ms = min(each.prefill_ms for each in candidates)
    # Workers refuse an empty prompt, and name the reason.
    return Beginning(num_held / max(1, request.num_prompt_tokens), rest_ms)


class Returns:
    """Means of what was held of prompts that came."""

    def __init__(self) -> None:
        self.share = SHARE_PRIOR
        #: Of those that began with another one; infinite: there was none.
        self.rest_ms = math.inf

    def note(self, held: Beginning) -> None:
        """Count a request that is sent."""
        self.share += WEIGHT * (held.share - self.share)
        if not held.share:
            return
        if math.isinf(self.rest_ms):
            self.rest_ms = held.rest_ms
        else:
            self.rest_ms += WEIGHT * (held.rest_ms - self.rest_ms)


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The expected next turn: a prompt that begins with this one. Costs are times their chance."""

    #: Tokens that the worker with the most of those that prefer prefill holds.
    num_held: int = 0
    #: The chance that it comes and finds its worker busy.
    chance: float = 0.0
    #: What its rest costs beside answers.
    beside_ms: float = 0.0

    def cost_ms(self, request: RoutingRequest, placement: Placement) -> float:
        """Return what a placement lets it lose."""
        if not self.chance or _prefers_prefill(placement.writer):
            return 0.0
        num_held = self.num_held
        if placement.readers and _prefers_prefill(placement.reader):
            if placement.split is None:
                return 0.0
            num_held = max(num_held, placement.split.num_tokens)
        profile = placement.writer.endpoint.profile
        again_ms = profile.prefill_ms(request.num_prompt_tokens, num_held)
        return min(self.chance * again_ms, self.beside_ms)


#: Nothing is lost.
NO_TURN: Final = NextTurn()


def next_turn(candidates: Sequence[Candidate], returns: Returns, book: Book) -> NextTurn:
    """Return the next turn that is expected; `candidates` may compute this prompt, or write.

    Sequences come by chance, so a worker that prefers decode has none for a share of the time that
    their mean number says. Beside some, the rest takes twice as long, and all of them wait for it.
    """
    held = [each.num_held_tokens for each in candidates if _prefers_prefill(each)]
    writers = [each.endpoint for each in candidates if not _prefers_prefill(each)]
    if not held or not writers:
        return NO_TURN
    answer_s = book.answer_tokens * fmean(each.profile.itl_ms(1, 0) for each in writers) / 1000
    num_sequences = book.arrivals.per_s(book.clock()) * answer_s / len(writers)
    busy = -math.expm1(-num_sequences)
    chance = returns.share * busy
    if not chance:
        return NO_TURN
    times = returns.share * (busy + HARM_WEIGHT * num_sequences)
    return NextTurn(max(held), chance, times * returns.rest_ms)


def _prefers_prefill(candidate: Candidate) -> bool:
    return candidate.endpoint.preference is Role.PREFILL
