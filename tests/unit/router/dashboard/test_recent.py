"""The rings of finished requests and of links between workers."""

from __future__ import annotations

import pytest

from services.router.dashboard.links import SHOWN_S, WINDOW_S, Links
from services.router.dashboard.recent import RecentRequests
from tests.fakes.router.ended_requests import fetched, refused, served


def test_a_row_says_what_a_request_cost() -> None:
    recent = RecentRequests(wall_clock=lambda: 5.0)
    row = recent.add(served("chatcmpl-1", num_prompt_tokens=20, num_replays=1))
    assert (row.number, row.id, row.ended_s, row.outcome) == (1, "chatcmpl-1", 5.0, "stop")
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (20, 5, 10)
    assert (row.ttft_ms, row.itl_ms, row.total_ms) == (40.0, 10.0, 130.0)
    assert (row.prefill, row.decode, row.connector) == ("prefill-0", "decode-0", "shm")
    assert (row.transfer_bytes, row.transfer_ms, row.num_replays) == (2048, 4.0, 1)


def test_what_was_refused_has_no_times_that_nobody_measured() -> None:
    row = RecentRequests().add(refused())
    assert (row.failed, row.outcome, row.ttft_ms, row.itl_ms) == (
        True,
        "OverloadedError",
        None,
        None,
    )
    assert (row.prefill, row.decode, row.prompt_tokens) == ("", "", 20)


def test_the_ring_keeps_the_newest_and_finds_them_by_number() -> None:
    recent = RecentRequests(3)
    assert recent.rows() == []
    assert recent.find(1) is None
    for number in range(1, 8):
        recent.add(served(f"r{number}"))
    assert [row.id for row in recent.rows()] == ["r5", "r6", "r7"]
    assert [row.id for row in recent.rows(after=6)] == ["r7"]
    assert recent.rows(after=7) == recent.rows(after=99) == []
    assert [row.id for row in recent.rows(after=2)] == ["r5", "r6", "r7"]
    for number in range(-3, 12):
        found = recent.find(number)
        assert (None if found is None else found.row.id) == (
            f"r{number}" if 5 <= number <= 7 else None
        )


def test_an_id_of_any_length_takes_a_bounded_place() -> None:
    assert len(RecentRequests().add(served("x" * 10_000)).id) <= 160


def test_links_add_up_and_fade() -> None:
    now_s = [0.0]
    links, recent = Links(clock=lambda: now_s[0]), RecentRequests()
    for _ in range(3):
        links.add(recent.add(served()))
    [row] = links.rows()
    assert (row.source, row.target, row.connector) == ("prefill-0", "decode-0", "shm")
    assert (row.num_transfers, row.total_bytes) == (3, 3 * 2048)
    assert row.bytes_per_s == pytest.approx(3 * 2048 / WINDOW_S, rel=0.01)
    assert row.speed == pytest.approx(2048 / 0.004, rel=0.01)
    now_s[0] = WINDOW_S
    [later] = links.rows()
    assert later.bytes_per_s == pytest.approx(row.bytes_per_s / 2.718, rel=0.01)
    assert (later.idle_s, later.total_bytes) == (WINDOW_S, row.total_bytes)
    now_s[0] = SHOWN_S
    assert links.rows() == []


def test_a_prefix_that_came_from_a_peer_is_a_link_of_its_own() -> None:
    links, recent = Links(), RecentRequests()
    peer = {"prefix_source": "decode-1", "prefix_fetch_bytes": 512, "prefix_fetch_ms": 1.0}
    links.add(recent.add(served(timings=fetched(**peer))))
    links.add(recent.add(served(timings=fetched(**peer, prefill_worker="", transfer_bytes=0))))
    pairs = {(row.source, row.target): row.total_bytes for row in links.rows()}
    assert pairs == {
        ("prefill-0", "decode-0"): 2048,
        ("decode-1", "prefill-0"): 512,
        ("decode-1", "decode-0"): 512,
    }


def test_links_are_bounded_and_the_oldest_goes_first() -> None:
    links, recent = Links(max_links=4), RecentRequests()
    for number in (0, 1, 2, 3, 0, 4, 5):
        links.add(recent.add(served(timings=fetched(decode_worker=f"decode-{number}"))))
    assert {row.target for row in links.rows()} == {"decode-3", "decode-0", "decode-4", "decode-5"}
