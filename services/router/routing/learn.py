"""Update of workers' profiles with the costs that an answer reports."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from services.router.routing.places.steps import alone_ms

if TYPE_CHECKING:
    from services.router.routing.base import Route
    from services.router.routing.book import Booking
    from services.router.usage import Timings, Usage
    from services.router.workers.endpoint import Endpoint

#: Least share of an answer's time that its own steps take, whatever was computed meanwhile.
LEAST_OWN_SHARE = 0.3


def learn_prefill(
    route: Route,
    usage: Usage,
    timings: Timings,
    *,
    num_beside: float = 0,
    answer_tokens: float = math.inf,
) -> None:
    """Teach the profiles of the workers that computed and moved the prompt what that took.

    `num_beside`: sequences that decoded beside the prompt. `answer_tokens`: the steps that they
    did so at most, as the estimate expects (see `beside`).
    """
    if timings.prefill_place == "split":
        return  # two workers' time
    if route.num_handed_tokens and timings.prefill_place == "remote":
        route.decode.splits = False
    if not usage.transferred_tokens:
        route.decode.profile.observe_prefill(
            usage.prompt_tokens,
            usage.local_hit_tokens,
            _alone_ms(route.decode, timings.prefill_ms, num_beside, answer_tokens),
        )
        return
    name = timings.prefill_worker
    endpoint = next((e for e in route.prefill if e.name == name), None)
    if endpoint is None:
        return
    num_held = usage.local_hit_tokens + usage.transferred_hit_tokens
    # Usage does not report a prefill worker's hit that is no longer than the decode worker's.
    if usage.transferred_hit_tokens or not usage.local_hit_tokens:
        took_ms = _alone_ms(endpoint, timings.prefill_ms, num_beside, answer_tokens)
        endpoint.profile.observe_prefill(usage.prompt_tokens, num_held, took_ms)
    route.decode.profile.observe_exposed(usage.transferred_tokens, timings.transfer_exposed_ms)
    # A transfer lasts as long as the computation that it overlaps with. Its time shows the speed of
    # moving blocks only if most of the prompt was cached.
    if 2 * usage.transferred_hit_tokens >= usage.transferred_tokens:
        for profile in (endpoint.profile, route.decode.profile):
            profile.observe_transfer(
                usage.transferred_tokens, timings.transfer_bytes, timings.transfer_ms
            )


def learn_decode(
    route: Route, booking: Booking, timings: Timings, *, num_output_tokens: int
) -> None:
    """Teach the decode worker's profile the mean time of a step during the answer.

    The prompts that the worker computed meanwhile are not part of it.
    """
    if num_output_tokens > 1:
        own_ms = max(timings.decode_ms - booking.prompts_ms, LEAST_OWN_SHARE * timings.decode_ms)
        num, num_held = booking.num_decoding, route.decode.work.num_held_tokens
        # The wait for a place in the batch is no part of a step.
        part = route.decode.num_running(num) / num if num else 1.0
        route.decode.profile.observe_decode(
            part * num, part * num_held, part * own_ms / (num_output_tokens - 1)
        )


def _alone_ms(endpoint: Endpoint, took_ms: float, num_beside: float, answer_tokens: float) -> float:
    """Return what the prompt would have taken without sequences beside it."""
    work = endpoint.work
    itl_ms = endpoint.profile.itl_ms(num_beside, work.num_held_tokens)
    return alone_ms(
        took_ms,
        num_decoding=num_beside,
        num_unbounded=num_beside if work.bound_ms is None else work.num_unbounded,
        itl_ms=itl_ms,
        bound_ms=work.bound_ms,
        least_ms=endpoint.profile.itl_ms(1, 0),
        num_left=answer_tokens,
    )
