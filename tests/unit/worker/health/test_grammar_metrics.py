"""What structured output costs, as Prometheus sees it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from shared.engine.grammar.stats import GrammarStats
from shared.worker.health.grammar_metrics import GrammarCollector


def test_every_number_is_exposed() -> None:
    stats = GrammarStats(num_compiled=2, compile_s=0.5, num_masks=10, mask_ns=20_000)
    stats.failures["invalid"] = 3
    registry = CollectorRegistry()
    registry.register(GrammarCollector(stats, model="m"))
    text = generate_latest(registry).decode()
    for line in (
        'baton_structured_output_compiled_total{model_name="m"} 2.0',
        'baton_structured_output_compile_seconds_total{model_name="m"} 0.5',
        'baton_structured_output_masks_total{model_name="m"} 10.0',
        'baton_structured_output_mask_seconds_total{model_name="m"} 2e-05',
        'baton_structured_output_failures_total{model_name="m",reason="invalid"} 3.0',
        'baton_structured_output_cached_bytes{model_name="m"} 0.0',
    ):
        assert line in text
