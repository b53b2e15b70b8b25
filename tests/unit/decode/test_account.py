"""I16: usage is true, wherever the prompt's KV came from and however the answer ended."""

from __future__ import annotations

import pytest

from baton.v1 import common_pb2, prefill_pb2
from services.decode.account import Account
from services.decode.decider import PrefillPlace
from services.decode.prefill_attempt import HandOffReport
from shared.connector.base import Receipt
from shared.worker.reuse.prefix_reuse import PrefixFetchReport

RECEIPT = Receipt(
    digest=1,
    num_blocks=4,
    num_bytes=4096,
    num_wire_bytes=4096,
    num_pieces=2,
    num_copied_bytes=4096,
    duration_ms=1.0,
)


def account(*, cached: int, place: PrefillPlace) -> Account:
    made = Account(num_prompt_tokens=100)
    made.admit(cached, at_s=0.0)
    made.place = place
    return made


def sources(usage: common_pb2.Usage) -> tuple[int, int, int, int]:
    s = usage.sources
    assert s.computed + s.local_hit + s.transferred == usage.prompt_tokens == 100
    return s.computed, s.local_hit, s.transferred, s.transferred_hit


@pytest.mark.parametrize("place", [PrefillPlace.LOCAL_SHORT, PrefillPlace.LOCAL_NO_WORKER])
def test_computed_here(place: PrefillPlace) -> None:
    usage = account(cached=80, place=place).usage()
    assert sources(usage) == (20, 80, 0, 0)
    assert usage.cached_tokens == 80


@pytest.mark.parametrize(
    ("here", "there", "remote_hit"),
    [(0, 0, 0), (0, 64, 64), (32, 64, 32), (64, 32, 0), (64, 0, 0)],
)
def test_transferred(here: int, there: int, remote_hit: int) -> None:
    """Only what the prefill worker had beyond our own hit was worth anything."""
    made = account(cached=here, place=PrefillPlace.REMOTE)
    made.settle(HandOffReport(receipt=RECEIPT, done=prefill_pb2.PrefillDone(cached_tokens=there)))
    usage = made.usage()
    assert sources(usage) == (0, here, 100 - here, remote_hit)
    assert usage.cached_tokens == here + remote_hit


def test_what_this_worker_fetched_was_transferred_and_a_hit() -> None:
    made = account(cached=64, place=PrefillPlace.LOCAL_NO_WORKER)
    made.fetched(PrefixFetchReport(first_token=16, num_tokens=48, source="peer", duration_ms=2.0))
    usage = made.usage()
    assert sources(usage) == (36, 16, 48, 48)
    assert (usage.sources.fetched, usage.cached_tokens) == (48, 64)
    assert made.timings().prefix_source == "peer"


def test_fetched_blocks_that_were_evicted_before_the_admission_do_not_count() -> None:
    made = account(cached=32, place=PrefillPlace.LOCAL_NO_WORKER)
    made.fetched(PrefixFetchReport(first_token=16, num_tokens=48, source="peer"))
    assert sources(made.usage()) == (68, 16, 16, 16)


@pytest.mark.parametrize(
    ("here", "there", "num_fetched", "counted"),
    [(0, 64, 48, 48), (32, 64, 48, 32), (64, 64, 64, 0), (0, 64, 0, 0)],
)
def test_what_the_prefill_worker_fetched_is_part_of_its_hit(
    here: int, there: int, num_fetched: int, counted: int
) -> None:
    made = account(cached=here, place=PrefillPlace.REMOTE)
    fetch = prefill_pb2.PrefixFetch(num_tokens=num_fetched, duration_ms=3.0, source="peer")
    done = prefill_pb2.PrefillDone(cached_tokens=there, prefix_fetch=fetch)
    made.settle(HandOffReport(receipt=RECEIPT, done=done))
    usage = made.usage()
    assert sources(usage) == (0, here, 100 - here, there - here)
    assert usage.sources.fetched == counted
    assert made.timings().prefix_fetch_ms == 3.0


def test_a_failed_hand_off_was_computed_here() -> None:
    made = account(cached=32, place=PrefillPlace.REMOTE)
    made.settle(HandOffReport())
    assert sources(made.usage()) == (68, 32, 0, 0)
    assert made.place is PrefillPlace.LOCAL_FALLBACK


def test_an_answer_that_ended_with_its_first_token_never_settled() -> None:
    made = account(cached=32, place=PrefillPlace.REMOTE)
    made.count(1)
    usage = made.usage()
    assert sources(usage) == (0, 32, 68, 0)
    assert usage.completion_tokens == 1


def test_news_are_told_once_and_again_after_the_hand_off() -> None:
    made = account(cached=0, place=PrefillPlace.REMOTE)
    assert [made.take_news(), made.take_news()] == [True, False]
    made.settle(HandOffReport())
    assert [made.take_news(), made.take_news()] == [True, False]


@pytest.mark.parametrize(
    ("cached", "expected", "num_recomputed"),
    [(0, (100, 0, 0, 0), 129), (64, (36, 64, 0, 0), 65), (112, (0, 100, 0, 0), 17)],
)
def test_an_answer_that_goes_on_here_tells_the_prompts_share(
    cached: int, expected: tuple[int, ...], num_recomputed: int
) -> None:
    """Of 30 tokens that were emitted before, the last one has had no KV yet."""
    made = Account(num_prompt_tokens=100, num_resumed_tokens=30)
    made.admit(cached, at_s=0.0)
    made.count(2)
    usage = made.usage()
    assert sources(usage) == expected
    assert (usage.completion_tokens, usage.recomputed_tokens) == (32, num_recomputed)


@pytest.mark.parametrize(
    ("there", "num_fetched", "expected", "num_recomputed"),
    [
        (0, 0, (0, 32, 68, 0), 97),
        (64, 32, (0, 32, 68, 32), 65),
        (128, 48, (0, 32, 68, 68), 1),
    ],
)
def test_what_moved_for_the_answers_own_tokens_is_not_the_prompts(
    there: int, num_fetched: int, expected: tuple[int, ...], num_recomputed: int
) -> None:
    made = Account(num_prompt_tokens=100, num_resumed_tokens=30)
    made.admit(32, at_s=0.0)
    made.place = PrefillPlace.REMOTE
    fetch = prefill_pb2.PrefixFetch(num_tokens=num_fetched, source="peer")
    done = prefill_pb2.PrefillDone(cached_tokens=there, prefix_fetch=fetch)
    made.settle(HandOffReport(receipt=RECEIPT, done=done))
    usage = made.usage()
    assert sources(usage) == expected
    assert usage.recomputed_tokens == num_recomputed
    assert usage.sources.fetched == (
        32 if there == 64 else max(0, num_fetched - 28) if there else 0
    )
