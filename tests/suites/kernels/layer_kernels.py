"""What every implementation of the norms, the rotation with KV write and the gate must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.layer_kernels` in one of its
own for Triton's interpreter. In half precision the error against float64 may be twice PyTorch's.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch

from kernels.low_rank import LowRankPart, LowRankSlots, RowSegments, SlotWeights, add_low_rank
from kernels.low_rank.segments import Segment
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.rope_kv_write.norms import HeadNorms
from kernels.silu_mul import silu_mul
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import random

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Query heads, key/value heads and head size: groups of every kind, more heads than one program's.
HEADS = ((6, 2, 80), (9, 9, 64), (16, 1, 128), (4, 4, 256), (3, 1, 96), (2, 1, 10))


def check_near(ours: Tensor, plain: Tensor, exact: Tensor) -> None:
    """As near to the exact result as twice what PyTorch's own arithmetic in that type is."""
    assert ours.dtype == plain.dtype
    error = (ours.double() - exact).abs().max().item()
    allowed = 2 * (plain.double() - exact).abs().max().item() + 1e-6
    assert error <= allowed, f"error {error}, allowed {allowed}"


def check_rms_norm(size: int, dtype: torch.dtype, implementation: str) -> None:
    x = random(5, 2 * size, dtype=dtype, seed=0)[:, :size]  # rows that do not lie side by side
    weight = random(size, dtype=dtype, seed=1)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    with poisoned_empty():
        ours = rms_norm(x, weight, eps=1e-5, implementation=implementation)
    plain = rms_norm(x, weight, eps=1e-5)
    check_near(ours, plain, exact)
    # Rounded at the same places: a sum in another order moves few numbers to their neighbour.
    assert (ours.float() / plain.float() - 1).abs().gt(1e-4).float().mean() < 0.02


def check_add_rms_norm(size: int, dtype: torch.dtype, implementation: str) -> None:
    x, residual = (random(5, size, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = random(size, dtype=dtype, seed=2)
    with poisoned_empty():
        normed, total = add_rms_norm(x, residual, weight, eps=1e-5, implementation=implementation)
    assert torch.equal(total, x + residual)
    wide = (x + residual).double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    check_near(normed, rms_norm(x + residual, weight, eps=1e-5), exact)


def check_silu_mul(size: int, dtype: torch.dtype, implementation: str) -> None:
    gate, up = (random(3, 2 * size, dtype=dtype, seed=0) * 6).split(size, dim=-1)
    exact = gate.double() * gate.double().sigmoid() * up.double()
    with poisoned_empty():
        ours = silu_mul(gate, up, implementation=implementation)
    check_near(ours, silu_mul(gate, up), exact)


def check_rope_kv_write(
    heads: tuple[int, int, int], dtype: torch.dtype, implementation: str, *, norm: bool
) -> None:
    """q, k and v are ranges of one product; the cache holds NaN wherever nothing is written."""
    num_heads, num_kv_heads, head_dim = heads
    fused = random(3, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype, seed=0)
    sizes = [num * head_dim for num in (num_heads, num_kv_heads, num_kv_heads)]
    q, k, v = (part.unflatten(-1, (-1, head_dim)) for part in fused.split(sizes, dim=-1))
    angles = random(3, head_dim // 2, dtype=torch.float32, seed=1)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
    norms = None
    if norm:
        q_weight, k_weight = (random(head_dim, dtype=dtype, seed=seed) for seed in (2, 3))
        norms = HeadNorms(q_weight, k_weight, 1e-6)
    slots = torch.tensor([2 * 8 + 7, 3, 1 * 8])

    def run(name: str) -> tuple[Tensor, Tensor]:
        cache = torch.full((4, 3, 2, num_kv_heads, 8, head_dim), float("nan"), dtype=dtype)
        with poisoned_empty():
            turned = rope_kv_write(
                q, k, v, cos_sin, cache, 1, slots, norms=norms, implementation=name
            )
        return turned, cache

    ours, cache = run(implementation)
    plain, plain_cache = run("torch")
    written = ~cache.isnan()
    assert torch.equal(written, ~plain_cache.isnan())
    assert int(written.sum()) == 2 * k.numel()
    check_near(ours, plain, _rotated(q, cos_sin, norms and norms.q_weight))
    exact = _rotated(k, cos_sin, norms and norms.k_weight)
    blocks, offsets = slots // 8, slots % 8
    check_near(cache[blocks, 1, 0, :, offsets], plain_cache[blocks, 1, 0, :, offsets], exact)
    assert torch.equal(cache[blocks, 1, 1, :, offsets], v)


def check_low_rank(size: int, dtype: torch.dtype, implementation: str) -> None:
    """Rows of several slots, of none, of an empty one; ranges of outputs that touch, or do not."""
    rows = RowSegments(
        (Segment(1, 2, 0), Segment(2, 21, 3), Segment(22, 24, 7), Segment(24, 26, 0))
    )
    ends = (size // 2, size // 2 + 3, size + 3)
    held = {
        0: [
            _low_rank_part(0, ends[0], size, 5, dtype),
            _low_rank_part(ends[1], 60, size, 5, dtype),
        ],
        3: [
            _low_rank_part(0, ends[0], size, 24, dtype),
            _low_rank_part(ends[0], 3, size, 1, dtype),
        ],
    }
    slots = LowRankSlots(size, size + 70)
    for slot, parts in held.items():
        slots.put(slot, SlotWeights.of(parts))
    x = random(27, 2 * size, dtype=dtype, seed=0)[:, :size]
    before = random(27, size + 70, dtype=dtype, seed=1)
    exact = before.double()
    for start, end, slot in rows.segments:
        for part in held.get(slot, []):
            low = x[start:end].double() @ part.a.double().T * part.scale
            exact[start:end, part.first : part.end] += low @ part.b.double().T
    plain, ours = before.clone(), before.clone()
    add_low_rank(plain, x, slots, rows)
    with poisoned_empty():
        add_low_rank(ours, x, slots, rows, implementation=implementation)
    check_near(ours, plain, exact)
    untouched = [0, 21, 22, 23, 26]
    assert torch.equal(ours[untouched], before[untouched])
    slots.put(0, None)
    slots.put(3, None)
    add_low_rank(ours, x, slots, rows, implementation=implementation)  # nothing, and no error


def _low_rank_part(
    first: int, outputs: int, size: int, rank: int, dtype: torch.dtype
) -> LowRankPart:
    a = random(rank, size, dtype=dtype, seed=first + rank)
    b = random(outputs, rank, dtype=dtype, seed=first + rank + 1)
    return LowRankPart(first, a, b, 0.3)


def _rotated(x: Tensor, cos_sin: Tensor, weight: Tensor | None) -> Tensor:
    wide = x.double()
    if weight is not None:
        wide = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    cos, sin = cos_sin.double()[:, None].chunk(2, dim=-1)
    first, second = wide.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    found: dict[str, Callable[[], None]] = {}
    for (name, dtype), size in product(DTYPES.items(), (7, 96, 1500)):
        found[f"rms_norm-{name}-{size}"] = partial(check_rms_norm, size, dtype, implementation)
        found[f"add_rms_norm-{name}-{size}"] = partial(
            check_add_rms_norm, size, dtype, implementation
        )
        found[f"low_rank-{name}-{size}"] = partial(check_low_rank, size, dtype, implementation)
        found[f"silu_mul-{name}-{size}"] = partial(check_silu_mul, size, dtype, implementation)
    for (name, dtype), heads, norm in product(DTYPES.items(), HEADS, (False, True)):
        suffix = "-norm" if norm else ""
        found[f"rope_kv_write-{name}-{'x'.join(map(str, heads))}{suffix}"] = partial(
            check_rope_kv_write, heads, dtype, implementation, norm=norm
        )
    return found


if __name__ == "__main__":
    report(checks("triton"))
