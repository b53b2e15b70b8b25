"""The real scheduler over simulated workers, by a simulated clock: the same numbers every time."""

from __future__ import annotations

import functools
import hashlib
import lzma

import pytest

from benchmarks.routing.cluster import AdapterMemory, Result, ServiceTime, Simulation
from benchmarks.routing.traces import (
    DATA,
    Arrival,
    at_rate,
    hot_prefix,
    read_trace,
    zipf_adapters,
)
from shared.engine.adapters import recent_uses

SLICE = 1000


_trace = functools.cache(read_trace)


def _run(
    policy: str, trace: str, *, offered: float, num_workers: int = 4, num_requests: int = SLICE
) -> Result:
    arrivals = _trace(trace, num_requests)
    work_s = ServiceTime().no_cache_s(arrivals) / offered
    return Simulation(policy, num_workers=num_workers).run(at_rate(arrivals, work_s, num_workers))


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_the_default_policy_is_better_than_load_and_turns(trace: str) -> None:
    mean_ms = {
        policy: _run(policy, trace, offered=0.9).mean_ms
        for policy in ("cost", "cache-first", "least-loaded", "round-robin")
    }
    assert mean_ms["cost"] <= 0.75 * mean_ms["least-loaded"]
    assert mean_ms["cost"] <= 0.4 * mean_ms["round-robin"]
    assert mean_ms["cost"] <= 1.05 * mean_ms["cache-first"]


def test_it_keeps_hitting_when_more_comes_than_fits() -> None:
    for trace, num in (("conversation", 800), ("synthetic", SLICE)):
        cost = _run("cost", trace, offered=1.1, num_requests=num)
        least = _run("least-loaded", trace, offered=1.1, num_requests=num)
        assert cost.hit_rate > 1.5 * least.hit_rate
        assert cost.mean_ms < 0.5 * least.mean_ms


def test_it_beats_affinity_when_more_comes_than_fits() -> None:
    """On the whole trace: over a part of it chance in breaking ties is a few per cent."""
    arrivals = read_trace("synthetic")
    arrivals = at_rate(arrivals, ServiceTime().no_cache_s(arrivals) / 1.1, 4)
    cost, affine = (
        Simulation(policy, num_workers=4).run(arrivals) for policy in ("cost", "cache-first")
    )
    assert cost.mean_ms < affine.mean_ms
    assert cost.percentile_ms(0.99) < affine.percentile_ms(0.99)


def test_requests_go_where_their_adapter_is_and_a_hot_adapter_to_several() -> None:
    trace = zipf_adapters(num_requests=1000)
    arrivals = at_rate(trace, ServiceTime().no_cache_s(trace) / 0.7, 8)
    cost, least = (
        Simulation(policy, num_workers=8, adapters=AdapterMemory(16)).run(arrivals)
        for policy in ("cost", "least-loaded")
    )
    assert cost.num_loads <= 0.4 * least.num_loads
    assert cost.mean_ms <= 0.7 * least.mean_ms
    # The most popular one is asked for by a fifth of all requests: more than one worker's share.
    assert cost.peak_load <= 1.25
    assert cost.num_loads > 100


def test_a_full_memory_keeps_what_is_asked_for_most(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = zipf_adapters(num_requests=2000)
    arrivals = at_rate(trace, ServiceTime().no_cache_s(trace) / 0.7, 8)

    def num_loads() -> int:
        return Simulation("cost", num_workers=8, adapters=AdapterMemory(8)).run(arrivals).num_loads

    by_use = num_loads()
    # Where a use is forgotten at the next one, the least recently used one goes.
    monkeypatch.setattr(recent_uses, "HALF_LIFE_PER_PLACE", 0.01)
    assert by_use <= 0.95 * num_loads()


@pytest.mark.parametrize("offered", [0.5, 1.1])
def test_a_hot_prefix_makes_no_hot_worker(offered: float) -> None:
    arrivals = hot_prefix(num_requests=800)
    work_s = ServiceTime().no_cache_s(arrivals) / offered
    result = Simulation("cost", num_workers=8).run(at_rate(arrivals, work_s, 8))
    assert result.peak_load <= 1.5
    assert result.hit_rate > 0.35


def test_the_same_run_gives_the_same_numbers() -> None:
    first, second = (_run("cost", "synthetic", offered=0.9, num_requests=300) for _ in range(2))
    assert first == second


def test_one_worker_computes_one_prompt_after_the_other() -> None:
    def prompt(at_s: float, *numbers: int) -> Arrival:
        return Arrival(at_s, 512 * len(numbers), 1, tuple(bytes([n]) for n in numbers))

    service = ServiceTime()
    cold, warm = service.prefill_ms(1024, 0), service.prefill_ms(1024, 512)
    arrivals = [prompt(0.0, 1, 2), prompt(0.0, 1, 3), prompt(9.0, 4, 5), prompt(10.0, 1, 2)]
    result = Simulation("cost", num_workers=1, num_blocks=3).run(arrivals)
    # The fourth finds what the third left: 1, of which the tail 2 was evicted first.
    assert result.ttft_ms == pytest.approx([cold, cold + warm, cold, warm])
    assert (result.num_held_tokens, result.num_prompt_tokens) == (1024, 4096)
    assert result.num_requests == [4]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("conversation", "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df"),
        ("synthetic", "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131"),
    ],
)
def test_the_traces_are_the_published_ones(name: str, digest: str) -> None:
    data = lzma.decompress((DATA / f"{name}_trace.jsonl.xz").read_bytes())
    assert hashlib.sha256(data).hexdigest() == digest
