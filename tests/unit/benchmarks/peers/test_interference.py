"""Which gaps of the steady streams count."""

from __future__ import annotations

import pytest

from benchmarks.peers.serving.interference import STREAM_OUTPUT, Phase, summarise_phase


def test_a_stall_that_begins_in_the_window_counts_whole() -> None:
    phase = Phase(steady_ttfts_s=[0.1], burst_ttfts_s=[3.0, 1.0, 2.0])
    phase.gaps_s = [(0.5, 9.0), *((1.0 + i / 10, 0.1) for i in range(98)), (10.9, 5.0), (11.0, 7.0)]
    found = dict(summarise_phase(phase, (1.0, 11.0)))
    assert found["itl_p50_ms"] == pytest.approx(100.0)
    # 98 short gaps and the one that outlasts the window; those that begin outside do not count.
    assert found["itl_p99_ms"] == pytest.approx(198.0)
    assert found["tok_s"] == pytest.approx(9.9)
    assert found["ttft_ms"] == pytest.approx(2000.0)


def test_chunks_of_several_tokens_are_counted_as_tokens() -> None:
    phase = Phase(steady_ttfts_s=[0.1], num_answers=1, num_chunks=STREAM_OUTPUT // 2)
    phase.gaps_s = [(0.1 * i, 0.1) for i in range(10)]
    found = dict(summarise_phase(phase, (0.0, 1.0)))
    assert found["tok_s"] == pytest.approx(20.0)
    assert "ttft_ms" not in found
