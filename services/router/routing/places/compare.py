"""Compare placements by the milliseconds that they cost the request and others."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from services.router.routing.filters import SharesBlocksWith
from services.router.routing.places.placement import Place, Placement
from services.router.routing.policies.cost import DECODE_WEIGHT_TOKENS
from services.router.routing.room import has_space

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from services.router.routing.base import Candidate, RoutingRequest

#: Workers of each kind, best first by the policy, whose placements are compared.
MAX_COMPARED = 3
NO_SPACE = "its KV pool is too full"
NO_TIME = "the bound of the sequences that decode there leaves no time for it"


def terms_ms(placement: Placement) -> dict[str, float]:
    """Return what the placement costs, by name. Its workers' own terms are those of the policy."""
    reader, writer = placement.reader, placement.writer
    terms = {
        "queue": reader.queue_ms,
        "prefill": reader.prefill_ms,
        "stretch": reader.stretch_ms,
        "fetch": reader.transfer_ms,
        "adapter": reader.adapter_ms,
        "eviction": reader.eviction_ms,
        "crowding": reader.crowding_ms,
        "heat": reader.hot_ms,
        "harm": reader.harm_ms,
        "preference": reader.preference_ms,
        "spoil": writer.spoil_ms,
        "decode": DECODE_WEIGHT_TOKENS * writer.itl_ms + writer.preemption_ms,
    }
    if placement.place is Place.HERE:
        return terms
    # What the reader holds already is moved without a computation that would hide it.
    num_ready = reader.num_held_tokens - writer.num_held_tokens
    terms["transfer"] = writer.exposed_ms + writer.endpoint.profile.transfer_ms(num_ready)
    terms["adapter"] = max(reader.adapter_ms, writer.adapter_ms)
    terms["heat"] += writer.hot_ms
    terms["preference"] += writer.preference_ms
    return terms


def compared(
    request: RoutingRequest,
    *,
    writers: Sequence[Candidate],
    readers: Sequence[Candidate],
    alone: Sequence[Candidate],
) -> list[Placement]:
    """Return the placements of the best workers, best first.

    `writers` only write, `readers` only compute, `alone` do both. All are in the policy's order,
    which also breaks ties.
    """
    placements = [
        *_handed_over(request, writers, readers),
        *(_here(request, writer) for writer in alone[:MAX_COMPARED]),
    ]
    placements.sort(key=lambda placement: _key(request, placement))
    return placements


def _handed_over(
    request: RoutingRequest, writers: Sequence[Candidate], readers: Sequence[Candidate]
) -> Iterator[Placement]:
    for writer in writers[:MAX_COMPARED]:
        shares = SharesBlocksWith(writer.endpoint)
        others = [
            reader
            for reader in readers
            if reader.endpoint is not writer.endpoint and shares.keeps(request, reader.endpoint)
        ]
        for number, reader in enumerate(islice(others, MAX_COMPARED)):
            rest = others[:number] + others[number + 1 :]
            yield _costed(request, Placement(writer=writer, readers=(reader, *rest)))


def _here(request: RoutingRequest, writer: Candidate) -> Placement:
    return _costed(request, Placement(writer=writer))


def _costed(request: RoutingRequest, placement: Placement) -> Placement:
    reader, flaw = placement.reader, ""
    if not reader.fits_bound:
        flaw = NO_TIME
    elif not has_space(placement.writer.endpoint, request.num_prompt_tokens):
        flaw = NO_SPACE
    cost_ms = sum(terms_ms(placement).values())
    return Placement(writer=placement.writer, readers=placement.readers, cost_ms=cost_ms, flaw=flaw)


def _key(request: RoutingRequest, placement: Placement) -> tuple[bool, bool, bool, float]:
    itl_ms, ttft_ms = request.max_itl_ms, request.max_ttft_ms
    misses_itl = itl_ms is not None and placement.itl_ms > itl_ms
    misses_ttft = ttft_ms is not None and placement.ttft_ms * request.ttft_margin > ttft_ms
    return bool(placement.flaw), misses_itl, misses_ttft, placement.cost_ms
