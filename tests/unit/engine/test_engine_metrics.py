"""What Prometheus sees of a worker's tiers."""

from __future__ import annotations

from dataclasses import asdict

from prometheus_client import CollectorRegistry

from shared.engine.engine_metrics import EngineCollector
from shared.engine.engine_stats import EngineStats
from shared.engine.offload.stats import TierCounters, TierStats
from shared.kv.tier import BlockTier


def registry(stats: EngineStats) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(EngineCollector(lambda: stats, model="m"))
    return made


def test_tiers_have_their_own_samples() -> None:
    counters = TierCounters(hits=3, corrupt_blocks=1, load_seconds=0.5)
    disk = TierStats(
        num_blocks=2, num_bytes=20, capacity_bytes=90, is_available=False, counters=asdict(counters)
    )
    made = registry(EngineStats(num_loading=4, tiers={BlockTier.DISK: disk}))

    def sample(name: str) -> float | None:
        labels = {"model_name": "m", "tier": "disk"}
        return made.get_sample_value(f"baton_kv_offload_{name}", labels)

    assert [sample(n) for n in ("num_blocks", "num_bytes", "capacity_bytes")] == [2, 20, 90]
    assert sample("is_available") == 0
    assert [sample(f"{n}_total") for n in ("hits", "corrupt_blocks", "stores")] == [3, 1, 0]
    assert sample("load_seconds_total") == 0.5
    assert made.get_sample_value("baton_num_requests_loading", {"model_name": "m"}) == 4


def test_landings_are_counted_by_outcome_and_by_reason() -> None:
    made = registry(EngineStats(landings={"received": 2}, refused_landings={"no_slots": 5}))
    labels = {"model_name": "m"}
    received, refused = labels | {"outcome": "received"}, labels | {"reason": "no_slots"}
    assert made.get_sample_value("baton_landings_total", received) == 2
    assert made.get_sample_value("baton_landings_refused_total", refused) == 5


def test_an_engine_without_tiers_has_no_such_samples() -> None:
    made = registry(EngineStats())
    names = [sample.name for metric in made.collect() for sample in metric.samples]
    assert not [name for name in names if "offload" in name]
