"""Adapters in the router's metrics, and under vLLM's name."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from services.router.watch.adapter_metrics import AdapterMetrics
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad
from shared.telemetry.vllm_names import ROUTER_NAMES, exposed_metrics
from tests.fakes.scripted_adapters import NamedAdapters
from tests.unit.router.routing.workers import endpoint


def samples(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_adapters_are_counted_and_told_to_gateways() -> None:
    adapters = NamedAdapters("a", "b", "c")
    workers = [endpoint("d"), endpoint("e"), endpoint("plain")]

    def state(name: str, place: AdapterPlace, running: int = 0, waiting: int = 0) -> AdapterState:
        ref = adapters.find(name)
        assert ref is not None
        return AdapterState(
            adapter=ref, rank=8, place=place, num_running=running, num_waiting=waiting
        )

    first = (state("a", AdapterPlace.DEVICE, 2), state("b", AdapterPlace.KNOWN, 0, 1))
    workers[0].report(WorkerLoad(adapters=first, max_adapters=2))
    second = (state("c", AdapterPlace.HOST, 0, 3), state("b", AdapterPlace.DEVICE, 1))
    workers[1].report(WorkerLoad(adapters=second, max_adapters=4))
    registry = CollectorRegistry()
    registry.register(AdapterMetrics(lambda: workers, adapters))
    shown = exposed_metrics(registry, "vllm", repeated=ROUTER_NAMES, model="tiny", engine="0")
    found = samples(shown)
    assert found["baton_adapters"] == 3
    assert found['baton_worker_adapters{worker="d"}'] == 1
    assert found['baton_worker_adapters{worker="e"}'] == 2
    [info] = [name for name in found if name.startswith("vllm:lora_requests_info{")]
    for label in (
        'running_lora_adapters="a,b"',
        'waiting_lora_adapters="b,c"',
        'max_lora="4"',
        'model_name="tiny"',
    ):
        assert label in info
    assert found[info] > 1e9
    workers.clear()
    assert set(samples(registry)) == {"baton_adapters"}
