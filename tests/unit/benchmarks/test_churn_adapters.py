"""Which contents a client of a benchmark may get, while an adapter's name changes its content."""

from __future__ import annotations

import time

from benchmarks.catalogue.adapters import AdapterBook, digest_of, token_of

OLD, NEW = digest_of("m/a-0"), digest_of("m/a-1")


def test_a_request_gets_what_the_name_stood_for_while_it_ran() -> None:
    book = AdapterBook("m", "a")
    assert book.allowed_since(time.monotonic()) == {None}
    book.is_now(OLD)
    time.sleep(0.001)
    before_s = time.monotonic()
    assert book.allowed_since(before_s) == {OLD}
    book.may_become(NEW)
    time.sleep(0.001)
    during_s = time.monotonic()
    assert book.allowed_since(during_s) == {OLD, NEW}
    book.is_now(NEW)
    time.sleep(0.001)
    assert book.allowed_since(time.monotonic()) == {NEW}
    assert book.allowed_since(during_s) == book.allowed_since(before_s) == {OLD, NEW}


def test_contents_are_told_apart_by_their_tokens() -> None:
    assert token_of(OLD) != token_of(NEW)
