"""Results as a run could have left them."""

from __future__ import annotations

from benchmarks.peers.results import Results, Sample

MACHINE = {
    "processor": "Test CPU",
    "family": "family 1 model 2",
    "cores": 2,
    "features": ["avx2"],
    "virtual": True,
    "memory_gib": 24,
    "kernel": "6.1",
    "python": "3.11.1",
    "torch": "2.13.0",
}
ENGINE = {
    ("baton", "ttft_1024_ms"): [400.0, 410.0, 390.0, 400.0, 405.0],
    ("vllm", "ttft_1024_ms"): [500.0, 510.0, 490.0, 505.0, 500.0],
    ("llama.cpp", "ttft_1024_ms"): [1000.0],
    ("baton", "batch16"): [300.0, 310.0],
    ("vllm", "batch16"): [600.0, 610.0],
    ("baton", "decode_b1_ctx32"): [100.0],
}
SERVING = {
    ("baton P/D", "burst_itl_p99_ms"): [60.0],
    ("baton aggregated chunk 128", "burst_itl_p99_ms"): [120.0],
    ("baton aggregated", "burst_itl_p99_ms"): [900.0],
    ("vllm P/D", "burst_itl_p99_ms"): [90.0],
    ("vllm aggregated", "burst_itl_p99_ms"): [10.0],
}


def make_results() -> Results:
    """Engines and servers on the small model."""
    samples = [
        Sample(section=section, model="small", system=system, metric=metric, value=value)
        for section, values in (("engine", ENGINE), ("serving", SERVING))
        for (system, metric), own in values.items()
        for value in own
    ]
    return Results(
        date="2026-01-02",
        machine=MACHINE,
        settings={"revision": "abc1234"},
        systems={
            "engine small": {
                "baton": {"version": "1", "first_tokens": [1, 2, 3, 4]},
                "vllm": {"version": "0.32", "first_tokens": [1, 2, 3, 5]},
                "transformers": {"missing": "not installed: make setup"},
            }
        },
        limits={"dram_read_gb_s": 40.0, "gemm_gflop_s": 700.0},
        omitted=["engine small: prefix (no time was left)"],
        samples=samples,
    )
