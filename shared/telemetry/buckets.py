"""Bucket bounds of histograms: vLLM's, so that dashboards made for it fit."""

from __future__ import annotations

#: From a request's arrival to its first token, in seconds.
TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
#: Between two tokens of an answer, in seconds.
ITL_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
#: Whole requests and their longest stages, in seconds.
LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
#: Ours: stages of a request and transfers, which mostly take milliseconds, in seconds.
STAGE_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
#: Tokens of one engine step.
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
#: Tokens of a prompt or an answer.
REQUEST_TOKENS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
#: Answers that one request asks for.
REQUEST_ANSWERS = (1, 2, 5, 10, 20)
#: Bytes of a transfer: a KiB, doubling, up to 32 GiB.
NUM_BYTES = tuple(2 ** (10 + power) for power in range(26))
