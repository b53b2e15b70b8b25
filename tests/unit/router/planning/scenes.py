"""Workers, demands and limits for tests of the planner."""

from __future__ import annotations

from hypothesis import strategies as st

from services.router.planning.base import Bounds, Counts, Demand, Limits, Observation, WorkerState
from services.router.planning.speed import Speed
from shared.identity import Role, WorkerId

#: 20,000 prompt tokens/s; a step of 10 ms and half a millisecond per sequence.
SPEED = Speed(
    prefill=(5.0, 50.0, 1.0), decode=(10.0, 0.5, 0.1), kv_tokens=200_000, max_sequences=64
)
BOUNDS = Bounds(max_ttft_ms=1000.0, max_itl_ms=40.0)
RATES = st.floats(0.0, 50.0)
SPEEDS = st.builds(
    Speed,
    prefill=st.tuples(st.floats(0, 20), st.floats(1, 500), st.floats(0, 5)),
    decode=st.tuples(st.floats(1, 50), st.floats(0, 2), st.floats(0, 1)),
    kv_tokens=st.integers(1000, 1_000_000),
    max_sequences=st.integers(1, 256),
)
#: Also bounds that no worker can meet.
ANY_BOUNDS = st.builds(
    Bounds,
    max_ttft_ms=st.none() | st.floats(0.1, 10_000),
    max_itl_ms=st.none() | st.floats(0.1, 200),
)
LIMITS = st.builds(
    Limits,
    min_prefill=st.integers(0, 3),
    min_decode=st.integers(0, 3),
    max_workers=st.integers(1, 20),
)
COUNTS = st.builds(Counts, st.integers(0, 8), st.integers(0, 8))


def demand(
    requests_per_s: float, num_tokens: int = 2000, num_output: int = 200, speed: Speed = SPEED
) -> Demand:
    """Return the demand for equal requests."""
    return Demand(
        requests_per_s=requests_per_s,
        prompt_tokens=num_tokens,
        output_tokens=num_output,
        prompt_ms=speed.prefill_ms(num_tokens),
        variation=0.0,
        hopeless=0.0,
    )


def workers(
    counts: Counts, *, queue_ms: float = 0.0, num_running: int = 0, num_held_tokens: int = 0
) -> list[WorkerState]:
    """Return workers; queues are of those for prefill, sequences of those for decode."""
    return [
        WorkerState(
            worker=WorkerId(f"{role}-{i}", "1"),
            preference=role,
            queue_ms=queue_ms if role is Role.PREFILL else 0.0,
            num_running=num_running if role is Role.DECODE else 0,
            num_held_tokens=num_held_tokens if role is Role.DECODE else 0,
        )
        for role in (Role.PREFILL, Role.DECODE)
        for i in range(counts.of(role))
    ]


def seen(now_s: float, wanted: Demand, counts: Counts, **work: float) -> Observation:
    """Return what is seen of a cluster."""
    return Observation(now_s=now_s, demand=wanted, workers=workers(counts, **work))  # type: ignore[arg-type]
