"""A worker runs so many sequences at a time: answers beyond them wait for a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.routing.base import RoutingRequest
from services.router.routing.learn import learn_decode
from services.router.routing.places.mode import PlacementMode
from services.router.usage import Timings
from shared.identity import Role
from tests.unit.router.routing.workers import Cluster, endpoint

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint

MOST = 16
SHORT = RoutingRequest(num_prompt_tokens=160, max_tokens=400)


def worker(name: str, role: Role = Role.DECODE, *, most: int = MOST) -> Endpoint:
    serves = frozenset({Role.PREFILL, Role.DECODE})
    return endpoint(name, role, serves=serves, max_num_seqs=most)


def decodes(one: Endpoint, num: int) -> None:
    one.work.num_decoding, one.work.num_held_tokens = num, 100 * num


def terms(cluster: Cluster, writer: Endpoint) -> dict[str, float]:
    placements = cluster.chooser.decide(SHORT).placements
    return next(dict(p.terms_ms) for p in placements if p.writer.endpoint is writer)


def writer_of(cluster: Cluster) -> str:
    placement = cluster.chooser.decide(SHORT).placement
    assert placement is not None
    return placement.writer.endpoint.name


@pytest.mark.parametrize("mode", [PlacementMode.ELASTIC, PlacementMode.DISAGGREGATED])
def test_an_answer_goes_where_a_place_is_free(mode: PlacementMode) -> None:
    """More sequences run at the larger worker: its steps are longer, and nothing waits."""
    small, large, untold = worker("small"), worker("large", most=4 * MOST), worker("?", most=0)
    cluster = Cluster(small, large, endpoint("p"), mode=mode)
    decodes(small, MOST - 2)
    decodes(large, MOST + 4)
    assert writer_of(cluster) == "small"
    decodes(small, MOST + 4)
    decodes(large, MOST + 12)
    assert writer_of(cluster) == "large"
    # A worker that is too old to tell is taken to have places for all.
    decodes(untold, MOST + 11)
    assert writer_of(Cluster(untold, large, endpoint("p"), mode=mode)) == "?"


def test_full_batches_bring_answers_to_workers_that_prefer_prompts() -> None:
    decode, prefill = worker("d"), worker("p", Role.PREFILL)
    other, third = worker("e"), worker("q", Role.PREFILL)
    cluster = Cluster(decode, other, prefill, third, mode=PlacementMode.ELASTIC)
    for each in (prefill, third):
        each.work.add_prompt(1, 10, 20.0, cluster.clock())
    for each in (decode, other):
        decodes(each, MOST - 2)
    assert writer_of(cluster) in "de"
    for each in (decode, other):
        decodes(each, 2 * MOST)
    assert writer_of(cluster) in "pq"


def test_the_wait_is_what_the_places_before_it_take() -> None:
    decode = worker("d")
    cluster = Cluster(decode, worker("p", Role.PREFILL), mode=PlacementMode.ELASTIC)
    decodes(decode, MOST - 1)
    assert terms(cluster, decode)["place"] == 0.0
    decodes(decode, 3 * MOST - 1)
    placements = cluster.chooser.decide(SHORT).placements
    [first] = [p for p in placements if p.writer.endpoint is decode and p.readers]
    # Two batches' time, of which the prompt's computation passes meanwhile.
    held = (100 * (3 * MOST - 1) + SHORT.num_prompt_tokens) / 3
    step_ms = decode.profile.itl_ms(MOST, held)
    answer_tokens = min(cluster.book.answer_tokens, SHORT.max_tokens)
    wait_ms = 2 * answer_tokens * step_ms
    assert first.terms_ms["place"] == pytest.approx(wait_ms - first.ttft_ms)
    # A bound on the time between tokens counts it.
    assert first.itl_ms == pytest.approx(3 * step_ms)


def test_a_wait_for_a_place_is_not_learnt_as_a_slow_step() -> None:
    decode = worker("d")
    cluster = Cluster(decode, worker("p", Role.PREFILL))
    route = cluster.chooser.route(SHORT)
    decode.work.num_decoding = 2 * MOST - 1
    for _ in range(60):
        booking = cluster.book.begin(route, num_prompt_tokens=100)
        booking.add_tokens(1)
        # Steps of 20 ms; as long again until a place is free.
        learn_decode(route, booking, Timings(decode_ms=2 * 20.0 * 100), num_output_tokens=101)
        booking.release()
    assert decode.profile.itl_ms(MOST, 0) == pytest.approx(20, rel=0.05)
