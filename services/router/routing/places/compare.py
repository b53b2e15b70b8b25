"""Compare placements by the milliseconds that they cost the request and others."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from services.router.routing.filters import handing_to
from services.router.routing.places.placement import Place, Placement
from services.router.routing.places.returns import NO_TURN
from services.router.routing.places.split import splits_of
from services.router.routing.policies.cost import DECODE_WEIGHT_TOKENS
from services.router.routing.room import has_space

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from services.router.routing.base import Candidate, RoutingRequest
    from services.router.routing.places.placement import Split
    from services.router.routing.places.returns import NextTurn

#: Workers of each kind, best first by the policy, whose placements are compared.
MAX_COMPARED = 3
NO_SPACE = "its KV pool is too full"
NO_TIME = "the bound of the sequences that decode there leaves no time for it"


def compared(
    request: RoutingRequest,
    *,
    writers: Sequence[Candidate],
    readers: Sequence[Candidate],
    alone: Sequence[Candidate],
    turn: NextTurn = NO_TURN,
) -> list[Placement]:
    """Return the placements of the best workers, best first.

    `writers` only write, `readers` only compute, `alone` do both. All are in the policy's order,
    which also breaks ties. `turn`: the next one of the conversation.
    """
    placements = [*_handed_over(request, writers, readers)]
    for writer in alone[:MAX_COMPARED]:
        placements.append(Placement(writer=writer))
        others = _others(request, writer, readers)
        for reader in others[:MAX_COMPARED]:
            for split in splits_of(request, reader, writer):
                placement = Placement(
                    writer=writer, readers=tuple(_first(reader, others)), split=split
                )
                placements.append(placement)
    placements = [_costed(request, each, turn) for each in placements]
    placements.sort(key=lambda placement: _key(request, placement))
    return placements


def _handed_over(
    request: RoutingRequest, writers: Sequence[Candidate], readers: Sequence[Candidate]
) -> Iterator[Placement]:
    for writer in writers[:MAX_COMPARED]:
        others = _others(request, writer, readers)
        for reader in islice(others, MAX_COMPARED):
            placement = Placement(writer=writer, readers=tuple(_first(reader, others)))
            yield placement


def _others(
    request: RoutingRequest, writer: Candidate, readers: Sequence[Candidate]
) -> list[Candidate]:
    """Return the readers that may hand over to the writer."""
    filters = handing_to(writer.endpoint)
    return [
        reader
        for reader in readers
        if reader.endpoint is not writer.endpoint
        and all(each.keeps(request, reader.endpoint) for each in filters)
    ]


def _first(reader: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    return [reader, *(each for each in others if each is not reader)]


def _costed(request: RoutingRequest, placement: Placement, turn: NextTurn) -> Placement:
    flaw = ""
    computing = [placement.reader]
    if placement.split is not None:
        computing.append(placement.writer)
        terms = _split_terms(placement, placement.split)
    else:
        terms = _terms(placement)
    terms["return"] = turn.cost_ms(request, placement)
    if not all(candidate.fits_bound for candidate in computing):
        flaw = NO_TIME
    elif not has_space(placement.writer.endpoint, request.num_prompt_tokens):
        flaw = NO_SPACE
    return replace(placement, terms_ms=terms, cost_ms=sum(terms.values()), flaw=flaw)


def _terms(placement: Placement) -> dict[str, float]:
    """Return what the placement costs, by name."""
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
        **_writing_terms(placement),
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


def _writing_terms(placement: Placement) -> dict[str, float]:
    """Return what the answer costs at its writer, by name."""
    writer = placement.writer
    return {
        "spoil": writer.spoil_ms,
        "drag": writer.drag_ms,
        # Places become free meanwhile.
        "place": max(0.0, writer.place_ms - placement.ttft_ms),
        "decode": DECODE_WEIGHT_TOKENS * writer.itl_ms + writer.preemption_ms,
    }


def _split_terms(placement: Placement, split: Split) -> dict[str, float]:
    """Return what a split costs: each worker's share of what all of the prompt would cost there."""
    reader, writer = placement.reader, placement.writer
    of_reader = split.reader_ms / reader.prefill_ms if reader.prefill_ms else 0.0
    of_writer = split.writer_ms / writer.prefill_ms if writer.prefill_ms else 0.0
    return {
        "first token": split.ttft_ms,
        "eviction": max(reader.eviction_ms, writer.eviction_ms),
        "crowding": of_reader * reader.crowding_ms + of_writer * writer.crowding_ms,
        "heat": of_reader * reader.hot_ms + of_writer * writer.hot_ms,
        "harm": of_reader * reader.harm_ms + of_writer * writer.harm_ms,
        "preference": reader.preference_ms + writer.preference_ms,
        **_writing_terms(placement),
    }


def _key(request: RoutingRequest, placement: Placement) -> tuple[bool, bool, bool, float]:
    itl_ms, ttft_ms = request.max_itl_ms, request.max_ttft_ms
    misses_itl = itl_ms is not None and placement.itl_ms > itl_ms
    misses_ttft = ttft_ms is not None and placement.ttft_ms * request.ttft_margin > ttft_ms
    return bool(placement.flaw), misses_itl, misses_ttft, placement.cost_ms
