"""Whether two workers, of which one prefers prefill and one decode, should rather do both.

With two workers preferences are coarse: one computes all prompts, the other writes all answers.
That keeps prompts and answers out of each other's way. But two workers compute and write sooner
than one, and nothing is handed over. A mixture of both is worse than either: what is handed over
comes into steps with prompts in them, and all answers are in these steps. So the two are apart or
alike for all requests of a while: alike, unless gaps are longer for it. With more workers answers
gather, and some workers stay free of them: each prompt is placed for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.engine.timing.step_bound import prompt_room_ms
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.routing.base import Candidate, RoutingRequest
    from services.router.workers.endpoint import Endpoint

#: Longest gaps alike, as a multiple of those apart, up to which they do so.
GAPS: Final = 1.0
#: By this factor they are short of it to begin, and beyond it to end: each change brings a mixture.
FIRMNESS: Final = 1.1
#: Weight of a request in the means; the first ones weigh more.
WEIGHT: Final = 1 / 30
#: In answers with fewer tokens one gap in a hundred is the first one, that of the hand-off.
SHORT_ANSWER: Final = 100.0


class Pair:
    """Whether both workers compute the prompts of their own answers, by the latest requests."""

    def __init__(self) -> None:
        #: Until requests show something else, preferences hold.
        self.is_alike = False
        self._num_requests = 0
        self._gaps = 0.0

    def note(self, gaps: float) -> None:
        """Count a request that is sent, by what `gaps_alike` says of it."""
        self._num_requests += 1
        weight = max(WEIGHT, 1 / self._num_requests)
        self._gaps += weight * (gaps - self._gaps)
        self.is_alike = self._gaps <= (GAPS * FIRMNESS if self.is_alike else GAPS / FIRMNESS)


def is_pair(writers: Sequence[Endpoint], readers: Sequence[Endpoint]) -> bool:
    """Return whether there are two workers, which may do both and prefer different roles."""
    return (
        len(writers) == len(readers) == 2
        and all(any(each is other for other in readers) for each in writers)
        and {each.preference for each in writers} == {Role.PREFILL, Role.DECODE}
    )


def gaps_alike(
    request: RoutingRequest, candidates: Sequence[Candidate], answer_tokens: float
) -> float:
    """Return the longest gaps if both workers do both, as a multiple of those if they are apart.

    `candidates`: both workers, as computing and writing. `answer_tokens`: of an answer, on average.
    """
    works = [candidate.endpoint.work for candidate in candidates]
    num_answers = 1 + sum(work.num_decoding + work.num_coming for work in works)
    num_held = request.num_prompt_tokens + sum(work.num_held_tokens for work in works)
    best = min(candidates, key=lambda candidate: candidate.prefill_ms)
    profile = best.endpoint.profile
    share = len(candidates)
    step_ms = profile.itl_ms(num_answers / share, num_held / share)
    alike_ms = step_ms + prompt_room_ms(step_ms, profile.itl_ms(1, 0))
    apart_ms = profile.itl_ms(num_answers, num_held)
    if min(answer_tokens, request.max_tokens) < SHORT_ANSWER:
        # What is handed over waits for the end of a step, and has its own.
        apart_ms += apart_ms + profile.exposed_ms(request.num_prompt_tokens)
    return alike_ms / apart_ms
