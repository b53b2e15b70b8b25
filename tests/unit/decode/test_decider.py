"""Where a prompt is computed."""

from __future__ import annotations

import pytest

from services.decode.decider import Decider, PrefillPlace


@pytest.mark.parametrize(
    ("uncached", "candidates", "place"),
    [
        (33, 1, PrefillPlace.REMOTE),
        (32, 1, PrefillPlace.LOCAL_SHORT),
        (1, 3, PrefillPlace.LOCAL_SHORT),
        (10_000, 0, PrefillPlace.LOCAL_NO_WORKER),
        (1, 0, PrefillPlace.LOCAL_NO_WORKER),
    ],
)
def test_short_rests_stay_here(uncached: int, candidates: int, place: PrefillPlace) -> None:
    decider = Decider(local_prefill_threshold=32)
    assert decider.place(num_uncached_tokens=uncached, num_candidates=candidates) is place


def test_a_threshold_of_zero_sends_everything_away() -> None:
    decider = Decider(local_prefill_threshold=0)
    place = decider.place(num_uncached_tokens=1, num_candidates=1)
    assert place is PrefillPlace.REMOTE
