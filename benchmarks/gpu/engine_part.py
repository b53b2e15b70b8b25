"""E1 to E6: decode and prefill of a whole engine, and what the host costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.model import make_model
from shared.engine.engine import Engine
from shared.engine.sequence.events import Failed, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.engine import EngineConfig
from shared.engine.step.decode_graphs import EagerRecorder
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench
    from benchmarks.gpu.rows import Row
    from shared.model.loaded import LoadedModel


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a run of decode steps gave."""

    step_s: float
    #: Of that, the host's own: neither launching graphs nor waiting for the device.
    host_s: float
    token_ids: list[int]


def measure_engine(bench: Bench) -> None:
    """E1, E2: decode; E4: prefill; E5: host and launches; E6: graphs against eager steps."""
    loaded = make_model(bench)
    decode_cells = bench.pick([(1, 1024), (64, 1024), (64, 4096)], [(1, 24), (4, 24)])
    for batch, context in decode_cells:
        goal = "E1" if batch == 1 else "E2"
        num_bytes = _bytes_per_step(loaded, batch, context)
        row, run = decode_row(bench, loaded, goal, batch, context, num_bytes, eager=False)
        if run is None:
            continue
        bench.report.note("E5", f"host time per step, B{batch}", f"{run.host_s * 1e3:.2f} ms")
        bench.report.note(goal, f"tokens/s, B{batch} ctx {context}", f"{batch / run.step_s:.0f}")
        if batch > 1:
            continue
        _, eager = decode_row(bench, loaded, "E6", batch, context, num_bytes, eager=True)
        if eager is not None and row is not None:
            same = "identical" if eager.token_ids == run.token_ids else "DIFFERENT"
            gain = eager.step_s / run.step_s
            bench.report.note("E6", "eager step / graph step", f"{gain:.2f}, tokens {same}")
    for num_tokens in bench.pick((2048, 8192), (48,)):
        _measure_prefill(bench, loaded, num_tokens)
    _count_launches(bench, loaded)


def make_engine(bench: Bench, loaded: LoadedModel, *, eager: bool, **settings: Any) -> Engine:
    """As a server would run it on this device; eager: one step after the other, no graphs."""
    limits = bench.pick(
        {"max_num_batched_tokens": 8192, "max_model_len": 8448},
        {"max_num_batched_tokens": 64, "max_model_len": 96, "num_blocks": 64},
    )
    bench.tidy()
    config = EngineConfig(
        device=str(bench.device), enforce_eager=eager, async_scheduling=not eager,
        enable_prefix_caching=False, **(limits | settings),
    )  # fmt: skip
    return Engine(loaded, config, recorder=None if bench.is_cuda or eager else EagerRecorder())


def make_request(name: str, num_tokens: int, vocab_size: int, max_tokens: int) -> EngineRequest:
    """A greedy request whose prompt no other request shares."""
    generator = torch.Generator().manual_seed(hash_name(name))
    prompt = torch.randint(3, vocab_size, (num_tokens,), generator=generator).tolist()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return EngineRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling)


def hash_name(name: str) -> int:
    """A seed that is the same in every process."""
    return int.from_bytes(name.encode()[-7:], "little")


def step(engine: Engine) -> list[tuple[str, int]]:
    """One step's tokens. Raises what failed."""
    tokens = []
    for event in engine.step():
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, NewTokens):
            tokens += [(event.request_id, token) for token in event.token_ids]
    return tokens


def decode_row(
    bench: Bench, loaded: LoadedModel, goal: str, batch: int, context: int, num_bytes: float,
    *, eager: bool, what: str = "", **settings: Any,
) -> tuple[Row, Decoding | None]:  # fmt: skip
    """Measure decode steps; `what` sets them apart, `settings` are fields of EngineConfig."""
    runs: list[Decoding] = []

    def measure() -> float:
        runs.append(_decode(bench, loaded, batch, context, eager=eager, **settings))
        return runs[-1].step_s

    how = "eager" if eager else "graphs"
    name = ", ".join(filter(None, (f"decode step B{batch} ctx {context}", how, what)))
    row = bench.report.measure(goal, name, measure, num_bytes=num_bytes)
    return row, runs[-1] if runs else None


def _decode(
    bench: Bench, loaded: LoadedModel, batch: int, context: int, *, eager: bool, **settings: Any
) -> Decoding:
    num_steps = bench.pick(64, 8)
    vocab_size = loaded.spec.vocab_size
    engine = make_engine(bench, loaded, eager=eager, max_num_seqs=batch, **settings)
    waits: list[float] = []
    _time_waits(engine, waits)
    try:
        for i in range(batch):
            engine.add(make_request(f"d{i}", context, vocab_size, max_tokens=num_steps + 16))
        started: set[str] = set()
        while len(started) < batch:
            started |= {name for name, _ in step(engine)}
        for _ in range(4):
            step(engine)
        times, token_ids, first_wait = [], [], len(waits)
        for _ in range(num_steps):
            start = time.perf_counter()
            tokens = step(engine)
            times.append(time.perf_counter() - start)
            token_ids += [token for name, token in tokens if name == "d0"]
        host_s = (sum(times) - sum(waits[first_wait:])) / num_steps
        return Decoding(median(times), host_s, token_ids)
    finally:
        engine.close()


def _time_waits(engine: Engine, waits: list[float]) -> None:
    """Note how long the host waits for the device in every step."""
    runner = engine._parts.runner
    collect = runner.collect

    def timed(launched: Any) -> Any:
        start = time.perf_counter()
        result = collect(launched)
        waits.append(time.perf_counter() - start)
        return result

    runner.collect = timed  # type: ignore[method-assign, assignment]


def _measure_prefill(bench: Bench, loaded: LoadedModel, num_tokens: int) -> None:
    spec = loaded.spec
    engine = make_engine(bench, loaded, eager=True, max_num_seqs=1)
    # Everything but the embedding and the head, of which a prompt takes one row.
    outer = 2 * spec.vocab_size * spec.hidden_size
    projections = loaded.num_weight_bytes // loaded.dtype.itemsize - outer
    attention = 2.0 * num_tokens**2 * spec.attention.query_size * spec.num_layers
    numbers = iter(range(1000))

    def measure() -> float:
        samples = []
        for _ in range(bench.pick(4, 1)):
            name = f"p{next(numbers)}"
            engine.add(make_request(name, num_tokens, spec.vocab_size, max_tokens=1))
            start = time.perf_counter()
            while not step(engine):
                pass
            samples.append(time.perf_counter() - start)
        return median(samples[1:] or samples)

    bench.report.measure(
        "E4", f"prefill of {num_tokens} tokens", measure,
        num_flops=2.0 * projections * num_tokens + attention,
    )  # fmt: skip
    engine.close()


def _count_launches(bench: Bench, loaded: LoadedModel) -> None:
    """E5: kernels per layer in an eager decode step."""
    engine = make_engine(bench, loaded, eager=True, max_num_seqs=1)
    engine.add(make_request("k", 20, loaded.spec.vocab_size, max_tokens=10))
    for _ in range(3):
        step(engine)
    activities = [ProfilerActivity.CUDA if bench.is_cuda else ProfilerActivity.CPU]
    with profile(activities=activities) as trace:
        step(engine)
        bench.synchronize()
    num = len([event for event in trace.events() if "Memcpy" not in event.name])
    per_layer = num / loaded.spec.num_layers
    what = "kernels" if bench.is_cuda else "operations"
    bench.report.note("E5", f"{what} per layer, decode", f"{per_layer:.1f}")
    engine.close()


def _bytes_per_step(loaded: LoadedModel, batch: int, context: int) -> float:
    """Weights but for the embedding's rows that are not looked up, and the KV of every context."""
    spec = loaded.spec
    element = loaded.dtype.itemsize
    embedding = 0 if spec.is_tied else spec.vocab_size * spec.hidden_size
    kv = 2 * spec.num_layers * spec.attention.kv_size * element
    return loaded.num_weight_bytes - embedding * element + batch * context * kv
