"""Update of workers' profiles with the costs that an answer reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.routing.base import Route
    from services.router.routing.book import Booking
    from services.router.usage import Timings, Usage


def learn_prefill(route: Route, usage: Usage, timings: Timings) -> None:
    """Teach the profiles of the workers that computed and moved the prompt what that took."""
    if not usage.transferred_tokens:
        route.decode.profile.observe_prefill(
            usage.prompt_tokens, usage.local_hit_tokens, timings.prefill_ms
        )
        return
    name = timings.prefill_worker
    endpoint = next((e for e in route.prefill if e.name == name), None)
    if endpoint is None:
        return
    num_held = usage.local_hit_tokens + usage.transferred_hit_tokens
    # Usage does not report a prefill worker's hit that is no longer than the decode worker's.
    if usage.transferred_hit_tokens or not usage.local_hit_tokens:
        endpoint.profile.observe_prefill(usage.prompt_tokens, num_held, timings.prefill_ms)
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
    """Teach the decode worker's profile the mean time of a step during the answer."""
    if num_output_tokens > 1:
        route.decode.profile.observe_decode(
            booking.num_decoding,
            route.decode.work.num_held_tokens,
            timings.decode_ms / (num_output_tokens - 1),
        )
