from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from services.router.watch.metrics import RequestMeters, observe_state
from services.router.watch.watched import WatchedGenerator
from shared.errors import NoWorkerError
from tests.fakes.scripted.decode import one_by_one, say

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from tests.integration.router.conftest import Bench


async def _answer(
    bench: Bench, generator: WatchedGenerator, gates: Sequence[asyncio.Event] = (), **params: Any
) -> None:
    remaining = iter(gates)
    async with aclosing(generator.generate(bench.request(**params))) as pieces:
        async for piece in pieces:
            if piece.index == 0 and (gate := next(remaining, None)) is not None:
                gate.set()


async def test_requests_are_counted_and_timed(bench: Bench) -> None:
    registry = CollectorRegistry()
    observe_state(bench.parts.router, registry)
    generator = WatchedGenerator(bench.parts.pipeline, [RequestMeters(registry).of("tiny")])
    with pytest.raises(NoWorkerError):
        await _answer(bench, generator)
    script, gates = one_by_one(say(70, 71, 72))
    await bench.add_worker(script, say(70))
    await _answer(bench, generator, gates, n=2)
    model = {"model_name": "tiny"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("baton_request_failure_total", error="NoWorkerError", **model) == 1
    assert value("baton_request_success_total", finished_reason="length", **model) == 2
    assert value("baton_generation_tokens_total", **model) == 4
    assert value("baton_prompt_tokens_total", **model) == 5
    assert value("baton_time_to_first_token_seconds_count", **model) == 1
    assert value("baton_inter_token_latency_seconds_count", **model) == 2
    assert value("baton_e2e_request_latency_seconds_count", **model) == 1
    for name in (
        "prompt_tokens",
        "generation_tokens",
        "prefill_time_seconds",
        "queue_time_seconds",
    ):
        assert value(f"baton_request_{name}_count", **model) == 1
    assert value("baton_request_generation_tokens_sum", **model) == 4
    assert value("baton_request_max_num_generation_tokens_sum", **model) == 3
    assert value("baton_request_params_n_sum", **model) == 2
    assert value("baton_prefix_cache_queries_total", **model) == 5
    # Two answers of 3 and 1 tokens are 2 each.
    assert value("baton_request_time_per_output_token_seconds_count", **model) == 1
    assert value("baton_request_stage_seconds_count", stage="decode", **model) == 1
    assert value("baton_request_stage_seconds_count", stage="transfer", **model) is None
    assert value("baton_routed_requests_total", prefill="local", **model) == 1
    assert value("baton_directory_workers") is not None
    assert value("baton_workers_ready", role="decode", **model) == 1
    assert value("baton_num_requests_running", **model) == 0
    assert value("baton_num_requests_waiting", **model) == 0
