"""The machine's limits, measured in the same run, and which share of them a result is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.engines.process import PeerError
from benchmarks.peers.engines.systems import plain_environ
from benchmarks.peers.models import spec_of
from cli.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.random_checkpoint import CheckpointSpec

BYTES_PER_VALUE = 2
TIMEOUT_S = 300.0
LIMITS = {
    "dram_read_gb_s": "memory read, GB/s",
    "memcpy_gb_s": "memory copied, GB/s",
    "gemm_gflop_s": "bf16 product 2048³, GFLOP/s",
}


@dataclass(frozen=True, slots=True)
class Share:
    """A result as a part of what is possible. `reached` and `limit` are in `unit`."""

    metric: str
    title: str
    reached: float
    limit: float
    unit: str

    @property
    def part(self) -> float:
        """1 is the limit."""
        return self.reached / self.limit


def measure_limits(models: Sequence[str], cores: Sequence[int]) -> dict[str, float]:
    """Run the measurement in a process of its own.

    Raises:
        PeerError: it failed.
    """
    shapes = {name: linear_shapes(spec_of(name)) for name in models}
    command = [
        sys.executable, "-P", "-m", "benchmarks.peers.workers.limits",
        "--threads", str(len(cores)),
        "--cores", ",".join(map(str, cores)),
        "--shapes", json.dumps(shapes),
    ]  # fmt: skip
    environ = plain_environ() | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise PeerError(f"the limits could not be measured:\n{done.stderr[-2000:]}")
    limits: dict[str, float] = json.loads(done.stdout)
    return limits


def higher(limits: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """The higher of two measurements of each limit."""
    names = dict.fromkeys((*limits, *others))
    return {name: max(limits.get(name, 0.0), others.get(name, 0.0)) for name in names}


def linear_shapes(spec: CheckpointSpec) -> list[tuple[int, int]]:
    """All matrix products of one step, [outputs, inputs] each, fused as engines fuse them."""
    hidden, head = spec.hidden_size, spec.head_dim
    layer = [
        ((spec.num_heads + 2 * spec.num_kv_heads) * head, hidden),
        (hidden, spec.num_heads * head),
        (2 * spec.intermediate_size, hidden),
        (hidden, spec.intermediate_size),
    ]
    return [*layer * spec.num_layers, (spec.vocab_size, hidden)]


def num_linear_weights(spec: CheckpointSpec, *, with_output: bool = True) -> int:
    """Weights that a step multiplies by."""
    shapes = linear_shapes(spec)
    return sum(n * k for n, k in (shapes if with_output else shapes[:-1]))


def kv_bytes(spec: CheckpointSpec, num_tokens: float) -> float:
    """What the token behind so many reads in all layers."""
    per_token = 2 * spec.num_kv_heads * spec.head_dim * BYTES_PER_VALUE
    return per_token * sum(_tokens_read(spec, num_tokens))


def _tokens_read(spec: CheckpointSpec, num_tokens: float) -> list[float]:
    """By layer."""
    kinds = spec.extra.get("layer_types", ["full_attention"] * spec.num_layers)
    window = spec.extra.get("sliding_window", num_tokens)
    return [num_tokens if kind == "full_attention" else min(num_tokens, window) for kind in kinds]


def prefill_flops(spec: CheckpointSpec, num_tokens: int) -> float:
    """Of one prompt: products for every token, causal attention, the output for the last one."""
    attention = 2 * spec.num_layers * spec.num_heads * spec.head_dim * num_tokens**2
    products = 2 * num_tokens * num_linear_weights(spec, with_output=False)
    return products + attention + 2 * spec.vocab_size * spec.hidden_size


def shares(
    spec: CheckpointSpec, model: str, medians: Mapping[str, float], limits: Mapping[str, float]
) -> list[Share]:
    """Of those results and limits that are there."""
    found = []
    for length in (32, 1024, 4096, 16384):
        metric, context = f"decode_b1_ctx{length}", length + 64
        if metric in medians and "dram_read_gb_s" in limits:
            step_bytes = num_linear_weights(spec) * BYTES_PER_VALUE + kv_bytes(spec, context)
            title = "weights and KV read, of the memory's read rate"
            reached = step_bytes * medians[metric] / 1e9
            found.append(Share(metric, title, reached, limits["dram_read_gb_s"], "GB/s"))
    for metric, title, name, seconds, flops in _rates(spec, model, medians):
        if name in limits:
            found.append(Share(metric, title, flops / seconds / 1e9, limits[name], "GFLOP/s"))
    return found


def _rates(
    spec: CheckpointSpec, model: str, medians: Mapping[str, float]
) -> list[tuple[str, str, str, float, float]]:
    """Metric, what it is a share of, the limit's name, seconds, and operations in that time."""
    rates = []
    square = "of the rate of a large square product"
    own = "of the library's rate on the same shapes alone"
    prefills = (("ttft_1024_ms", 1024, 1), ("prefill16_ms", 1088, 16))
    for metric, length, num in prefills:
        if metric in medians:
            flops, seconds = num * prefill_flops(spec, length), medians[metric] / 1e3
            rates.append((metric, square, "gemm_gflop_s", seconds, flops))
            rates.append((metric, own, f"linear_{model}_m1024_gflop_s", seconds, flops))
    for num in (16, 32):
        metric = f"batch{num}_decode"
        if metric in medians:
            flops, seconds = 2 * num * num_linear_weights(spec), num / medians[metric]
            rates.append((metric, own, f"linear_{model}_m{num}_gflop_s", seconds, flops))
    return rates
