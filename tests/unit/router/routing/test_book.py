from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.routing.base import Estimate, Route
from services.router.routing.book import ArrivalRate, Book, Booking
from services.router.routing.predicted import PredictedBlocks
from services.router.workers.timing.work import LATE_SHARE, Work
from shared.identity import Role
from tests.unit.router.routing.workers import SPACE, Clock, endpoint, hashes

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin local", "follow", "grow", "end", "wait"]),
        st.integers(0, 5),
        st.floats(0, 5000, allow_nan=False),
    ),
    max_size=60,
)


@given(actions=ACTIONS)
def test_the_book_never_goes_below_zero_and_returns_to_it(
    actions: list[tuple[str, int, float]],
) -> None:
    clock = Clock()
    book = Book(clock=clock, predicted=PredictedBlocks(max_hashes=12))
    prefill, decode = endpoint("p"), endpoint("d", Role.DECODE)
    bookings: list[Booking] = []
    for action, number, ms in actions:
        estimate = Estimate(prefill_ms=ms)
        route = Route(decode, (prefill,) if action == "begin" else (), (), estimate)
        if action in ("begin", "begin local"):
            prompt = hashes(*range(number))
            bookings.append(
                book.begin(route, num_prompt_tokens=number, block_hashes={SPACE: prompt})
            )
        elif action == "follow":
            bookings.append(book.begin_follower(route, num_prompt_tokens=number))
        elif action == "wait":
            clock.now_s += ms / 1000
        elif bookings:
            chosen = bookings[number % len(bookings)]
            if action == "grow":
                chosen.add_tokens(number)
            else:
                chosen.release()
        _check(book, clock, prefill.work, decode.work)
    for booking in bookings:
        booking.release()
    assert _numbers(prefill.work) == _numbers(decode.work) == (0, 0, 0, 0)
    assert prefill.work.queue_ms(clock()) == decode.work.queue_ms(clock()) == 0
    clock.now_s += 10
    assert book.predicted.held(prefill.record.worker, hashes(0), clock()) == 0
    assert book.predicted.num_hashes == 0


def _numbers(work: Work) -> tuple[int, int, int, int]:
    return work.num_requests, work.num_decoding, work.num_held_tokens, work.num_waiting_tokens


def _check(book: Book, clock: Clock, *pages: Work) -> None:
    for work in pages:
        assert min(_numbers(work)) >= 0
        assert work.queue_ms(clock()) >= 0
    assert 0 <= book.predicted.num_hashes <= 12


def test_a_booking_moves_from_prefill_to_decode_and_ends_once() -> None:
    book = Book()
    decode, prefill = endpoint("d", Role.DECODE), endpoint("p")
    booking = book.begin(Route(decode, (prefill,)), num_prompt_tokens=10)
    assert _numbers(decode.work) == (1, 0, 10, 0)
    assert _numbers(prefill.work) == (1, 0, 0, 10)
    booking.add_tokens(1)
    booking.add_tokens(2)
    assert _numbers(prefill.work) == (0, 0, 0, 0)
    assert _numbers(decode.work) == (1, 1, 13, 0)
    for _ in range(2):
        booking.release()
        booking.add_tokens(5)
    assert _numbers(decode.work) == (0, 0, 0, 0)


def test_the_first_answer_that_ends_says_how_long_they_are() -> None:
    book = Book()
    book.note_answer(4)
    assert 4 < book.answer_tokens < 25
    book.note_answer(6)
    assert 4 < book.answer_tokens < 15


def test_a_further_answer_has_no_prompt_to_compute() -> None:
    decode = endpoint("d", Role.DECODE)
    booking = Book().begin_follower(Route(decode), num_prompt_tokens=10)
    assert _numbers(decode.work) == (1, 1, 10, 0)
    booking.release()
    assert _numbers(decode.work) == (0, 0, 0, 0)


def test_a_queue_gets_shorter_while_its_head_is_computed() -> None:
    work = Work()
    work.add_prompt(1, 10, 1000.0, 50.0)
    work.add_prompt(2, 10, 300.0, 50.2)
    assert work.queue_ms(50.4) == pytest.approx(900)
    work.end_prompt(1, 50.6)
    assert work.queue_ms(50.7) == pytest.approx(200)
    work.end_prompt(7, 50.7)
    work.end_prompt(2, 50.7)
    assert work.queue_ms(60.0) == 0


def test_a_prompt_that_waits_for_its_grammar_is_never_late() -> None:
    """Others would wait in the router for as long as one tenant's grammars are compiled."""
    work = Work()
    work.add_prompt(1, 10, 100.0, 50.0, waits_apart=True)
    assert work.queue_ms(80.0) == pytest.approx(100)
    work.add_prompt(2, 10, 70.0, 80.0)
    assert work.queue_ms(80.0) == pytest.approx(170)
    assert work.num_prompts == 2
    work.end_prompt(1, 80.0)
    work.end_prompt(2, 80.0)
    assert (work.queue_ms(90.0), work.num_prompts, work.num_waiting_tokens) == (0, 0, 0)


def test_a_worker_that_is_late_looks_worse_with_time() -> None:
    work = Work()
    work.add_prompt(1, 10, 100.0, 50.0)
    work.add_prompt(2, 10, 70.0, 50.0)
    assert work.queue_ms(50.1) == pytest.approx(70)
    assert work.queue_ms(60.1) == pytest.approx(70 + LATE_SHARE * 10_000)


def test_a_cancelled_prompt_is_not_predicted_and_a_computed_one_is_for_a_while() -> None:
    clock = Clock()
    book = Book(clock=clock)
    prefill, decode = endpoint("p"), endpoint("d", Role.DECODE)
    route, prompt = Route(decode, (prefill,)), hashes(1, 2, 3)

    def held() -> int:
        return book.predicted.held(prefill.record.worker, hashes(1, 2, 3, 4), clock())

    booking = book.begin(route, num_prompt_tokens=50, block_hashes={SPACE: prompt})
    clock.now_s += 60
    assert held() == 3
    booking.release()
    assert held() == 0
    booking = book.begin(route, num_prompt_tokens=50, block_hashes={SPACE: prompt})
    booking.add_tokens(1)
    booking.release()
    assert held() == 3
    clock.now_s += 5
    assert held() == 0


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8),
    st.lists(st.integers(0, 3), max_size=7),
)
def test_predictions_find_the_longest_common_beginning(
    prompts: list[list[int]], asked: list[int]
) -> None:
    def chain(tokens: list[int]) -> list[bytes]:
        return [bytes(tokens[: i + 1]) for i in range(len(tokens))]

    def common(prompt: list[int]) -> int:
        pairs = zip(chain(prompt), chain(asked), strict=False)
        return sum(a == b for a, b in pairs)

    worker = endpoint("p").record.worker
    predicted = PredictedBlocks()
    for prompt in prompts:
        predicted.add(worker, chain(prompt), 0.0)
    expected = max((common(prompt) for prompt in prompts), default=0)
    assert predicted.held(worker, chain(asked), 1.0) == expected


def test_predictions_are_bounded_and_the_oldest_go_first() -> None:
    worker = endpoint("p").record.worker
    predicted = PredictedBlocks(max_hashes=4)
    old = predicted.add(worker, hashes(1, 2), 0.0)
    assert old is not None
    assert predicted.add(worker, hashes(3, 4), 0.0) is not None
    assert predicted.add(worker, hashes(5), 0.0) is None
    predicted.settle(old, 0.0)
    assert predicted.add(worker, hashes(5), 0.0) is not None
    assert predicted.held(worker, hashes(1), 0.0) == 0
    predicted.drop(old)
    assert predicted.num_hashes == 3


def test_the_rate_of_arrivals_follows_the_last_half_minute() -> None:
    rate = ArrivalRate()
    assert rate.per_s(0.0) == 0
    for i in range(1000):
        rate.note(i / 10)
    assert rate.per_s(100.0) == pytest.approx(10, rel=0.05)
    assert rate.per_s(400.0) < 0.1
