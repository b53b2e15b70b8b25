"""Two workers with a preference each are alike, unless gaps are longer for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.router.routing.base import RoutingRequest
from services.router.routing.places.mode import PlacementMode
from services.router.routing.places.pair import FIRMNESS, GAPS, Pair, is_pair
from services.router.routing.places.placement import Place
from shared.identity import Role
from tests.unit.router.routing.workers import Cluster, endpoint

if TYPE_CHECKING:
    from services.router.routing.book import Booking
    from services.router.workers.endpoint import Endpoint

BOTH = frozenset({Role.PREFILL, Role.DECODE})


def worker(name: str, role: Role, **changes: Any) -> Endpoint:
    """One with steps of 20 ms + 1 ms a sequence, and a prompt token in a quarter of one."""
    made = endpoint(name, role, serves=BOTH, **changes)
    for num in range(1, 60):
        made.profile.observe_decode(num, 100 * num, 20.0 + num)
        made.profile.observe_prefill(10 * num, 0, 2.5 * num)
        made.profile.observe_exposed(100, 8.0)
    return made


def cluster(*more: Endpoint) -> Cluster:
    """Two workers, of which the one that prefers decode writes some answers, and more."""
    writer = worker("d", Role.DECODE)
    writer.work.num_decoding = 4
    return Cluster(worker("p", Role.PREFILL), writer, *more, mode=PlacementMode.ELASTIC)


def send(cluster: Cluster, *, num_tokens: int, max_tokens: int = 20) -> tuple[Booking, str, str]:
    """Send a request whose prompt is not computed yet; return its reader and its writer, too."""
    request = RoutingRequest(num_prompt_tokens=num_tokens, max_tokens=max_tokens)
    route = cluster.chooser.route(request)
    booking = cluster.book.begin(route, num_prompt_tokens=num_tokens)
    reader = route.prefill[0] if route.prefill else route.decode
    return booking, reader.name, route.decode.name


def noted(*gaps: float) -> Pair:
    pair = Pair()
    for each in gaps:
        pair.note(each)
    return pair


def test_both_are_alike_unless_gaps_are_longer_for_it() -> None:
    assert not Pair().is_alike
    assert noted(GAPS / 2).is_alike
    assert not noted(2 * GAPS).is_alike
    pair = noted(*[GAPS / 2] * 30)
    pair.note(3 * GAPS)
    assert pair.is_alike  # one request decides nothing
    for _ in range(60):
        pair.note(3 * GAPS)
    assert not pair.is_alike


def test_what_is_between_changes_nothing() -> None:
    assert FIRMNESS > 1
    alike, apart = noted(GAPS / 2), noted(2 * GAPS)
    for _ in range(100):
        alike.note(GAPS * FIRMNESS**0.9)
        apart.note(GAPS / FIRMNESS**0.9)
    assert alike.is_alike
    assert not apart.is_alike


def test_only_two_workers_that_may_do_both_and_differ_are_a_pair() -> None:
    p, d, e = worker("p", Role.PREFILL), worker("d", Role.DECODE), worker("e", Role.DECODE)
    assert is_pair([d, p], [p, d])
    assert not is_pair([d, e], [d, e])
    assert not is_pair([d, p, e], [d, p, e])
    assert not is_pair([d, p], [p])
    assert not is_pair([d, p], [p, e])


@pytest.mark.parametrize("num_tokens", [16, 600])
def test_prompts_of_short_answers_are_computed_by_both_workers(num_tokens: int) -> None:
    both = cluster()
    sent = [send(both, num_tokens=num_tokens)[1:] for _ in range(30)]
    assert {reader == writer for reader, writer in sent[1:]} == {True}
    assert {reader for reader, _ in sent[1:]} == {"p", "d"}


def test_more_workers_are_placed_by_their_preferences() -> None:
    three = cluster(worker("e", Role.DECODE))
    places = [send(three, num_tokens=600) for _ in range(30)]
    assert any(reader != writer for _, reader, writer in places[20:])


def test_a_look_at_the_choice_is_no_request() -> None:
    both = cluster()
    request = RoutingRequest(num_prompt_tokens=4000, max_tokens=20)
    for _ in range(40):
        both.chooser.decide(request)
    decision = both.chooser.decide(request)
    assert decision.gaps is not None
    assert decision.gaps < GAPS / FIRMNESS
    assert decision.placements[0].place is Place.HANDED_OVER


def test_answers_of_which_few_gaps_are_hand_overs_stay_apart_if_steps_are_shorter_so() -> None:
    both = cluster()
    both.book.answer_tokens = 500.0
    for _ in range(60):
        send(both, num_tokens=600, max_tokens=500)
    assert not both.chooser._pair.is_alike
    both.book.answer_tokens = 20.0
    for _ in range(60):
        send(both, num_tokens=600)
    assert both.chooser._pair.is_alike


def test_answers_so_many_that_half_of_them_have_shorter_steps_are_divided() -> None:
    both = cluster()
    both.book.answer_tokens = 500.0
    for _ in range(150):
        send(both, num_tokens=16, max_tokens=500)
    assert both.chooser._pair.is_alike
