"""What every implementation of the recurrences must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.recurrence_kernels` in one
of its own for Triton's interpreter.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import silu

from kernels.recurrence.conv import causal_conv
from kernels.recurrence.delta import DeltaShape, gated_delta
from kernels.recurrence.mamba import MambaShape, mamba_scan
from kernels.recurrence.states import StateBatch
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import assert_near, random

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: New tokens of each sequence; none, one, fewer than a convolution reads, several tiles.
LENS = (1, 0, 2, 21, 1, 1)
NUM_BLOCKS, STATE_SIZE = 16, 3000
#: Of a convolution, and where the other states begin.
CHANNELS, FIRST = 135, 411
DELTA = DeltaShape(num_key_heads=2, num_heads=4, key_dim=12, value_dim=18, first=FIRST)
MAMBA = MambaShape(num_heads=4, head_dim=18, num_groups=2, state_dim=20, first=FIRST)
#: Whose chunks would need too many registers.
WIDE = MAMBA._replace(head_dim=4, state_dim=130)


def make_batch(
    lens: tuple[int, ...], *, places: list[tuple[int, int]], states: Tensor | None = None
) -> StateBatch:
    """States of NaN, but for those that are read."""
    if states is None:
        # One layer of two.
        states = torch.full((NUM_BLOCKS, 2, STATE_SIZE), float("nan"))[:, 1]
        for before, _ in places:
            if before >= 0:
                states[before] = random(STATE_SIZE, seed=before)
    starts = torch.tensor([0, *accumulate(lens)], dtype=torch.int32)
    return StateBatch(states, torch.tensor(places, dtype=torch.int32), starts, lens)


class Recurrence(NamedTuple):
    """One to be checked, its rows, and its definition of one sequence, in float64."""

    compute: Callable[[list[Tensor], StateBatch], Tensor]
    given: list[Tensor]
    #: The numbers of a state that it changes.
    numbers: slice
    #: Of the rows, and those numbers before them: the result, and those numbers after them.
    define: Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]


def convolve(
    implementation: str, *, dtype: torch.dtype, kernel_size: int, has_bias: bool
) -> Recurrence:
    weight = random(CHANNELS, 1, kernel_size, dtype=dtype, seed=1)
    bias = random(CHANNELS, dtype=dtype, seed=2) if has_bias else None
    rows = random(sum(LENS), CHANNELS + 9, dtype=dtype)[:, :CHANNELS]

    def compute(given: list[Tensor], batch: StateBatch) -> Tensor:
        return causal_conv(
            given[0], weight, bias, batch, activate=has_bias, implementation=implementation
        )

    def define(given: list[Tensor], held: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat((held.view(-1, CHANNELS), given[0]))
        mixed = torch.zeros_like(given[0])
        for at in range(kernel_size):
            mixed += seen[at : at + len(mixed)] * weight[:, 0, at].double()
        if bias is not None:
            mixed = silu(mixed + bias.double())
        return mixed, seen[len(mixed) :].flatten()

    return Recurrence(compute, [rows], slice((kernel_size - 1) * CHANNELS), define)


def follow_delta(implementation: str) -> Recurrence:
    num = sum(LENS)
    rows = random(num, 2 * DELTA.key_size + DELTA.value_size)
    decays, rates = (random(num, DELTA.num_heads, seed=seed).sigmoid() for seed in (1, 2))

    def compute(given: list[Tensor], batch: StateBatch) -> Tensor:
        rows, decays, rates = given
        return gated_delta(rows, decays, rates, DELTA, batch, implementation=implementation)

    def define(given: list[Tensor], held: Tensor) -> tuple[Tensor, Tensor]:
        state = held.view(DELTA.num_heads, DELTA.key_dim, DELTA.value_dim).clone()
        out = torch.empty(len(given[0]), DELTA.num_heads, DELTA.value_dim, dtype=torch.float64)
        for token, (row, decays, rates) in enumerate(zip(*given, strict=True)):
            *keys, v = row.split((DELTA.key_size, DELTA.key_size, DELTA.value_size))
            q, k = (part.view(2, -1).repeat_interleave(2, dim=0) for part in keys)
            q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
            state *= decays[:, None, None]
            known = torch.einsum("hk,hkv->hv", k, state)
            change = (v.view_as(known) - known) * rates[:, None]
            state += torch.einsum("hk,hv->hkv", k, change)
            out[token] = torch.einsum("hk,hkv->hv", q, state) * DELTA.key_dim**-0.5
        return out, state.flatten()

    return Recurrence(compute, [rows, decays, rates], DELTA.numbers, define)


def follow_mamba(implementation: str, shape: MambaShape = MAMBA) -> Recurrence:
    num = sum(LENS)
    rows = random(num, shape.inner_size + 2 * shape.group_size)
    decays, steps = (random(num, shape.num_heads, seed=seed).sigmoid() for seed in (1, 2))
    skip = random(shape.num_heads, seed=3)

    def compute(given: list[Tensor], batch: StateBatch) -> Tensor:
        rows, decays, steps = given
        return mamba_scan(rows, decays, steps, skip, shape, batch, implementation=implementation)

    def define(given: list[Tensor], held: Tensor) -> tuple[Tensor, Tensor]:
        state = held.view(shape.num_heads, shape.head_dim, shape.state_dim).clone()
        out = torch.empty(len(given[0]), shape.num_heads, shape.head_dim, dtype=torch.float64)
        for token, (row, decays, steps) in enumerate(zip(*given, strict=True)):
            x, *others = row.split((shape.inner_size, shape.group_size, shape.group_size))
            b, c = (part.view(2, -1).repeat_interleave(2, dim=0) for part in others)
            value = x.view(shape.num_heads, -1)
            state *= decays[:, None, None]
            state += torch.einsum("hd,hn->hdn", steps[:, None] * value, b)
            out[token] = torch.einsum("hdn,hn->hd", state, c) + skip[:, None].double() * value
        return out, state.flatten()

    return Recurrence(compute, [rows, decays, steps], shape.numbers, define)


def check(make: Callable[[str], Recurrence], implementation: str) -> None:
    """As defined, whether states move, stay or begin; no other number is written.

    The last two sequences pad the batch: they are equal, and write one block.
    """
    places = [(3, 5), (6, 6), (-1, 7), (8, 9), (-1, 0), (-1, 0)]
    compute, given, numbers, define = make(implementation)
    for part in given:
        part[-1] = part[-2]
    batch, begin = (make_batch(LENS, places=places) for _ in range(2))
    with poisoned_empty():
        ours = compute(given, batch)
    assert ours.dtype == torch.float32
    starts = (0, *accumulate(LENS))
    expected = begin.states.clone()
    for (before, after), (start, end) in zip(places, pairwise(starts), strict=True):
        held = begin.states[before, numbers].double()
        rows = [part[start:end].double() for part in given]
        out, held = define(rows, held if before >= 0 else torch.zeros_like(held))
        assert_near(ours[start:end].double(), out, rtol=1e-4, atol=1e-5)
        expected[after, numbers] = held.float()
    assert_near(batch.states, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def check_cuts(make: Callable[[str], Recurrence], implementation: str) -> None:
    """A sequence in steps of several sizes has the numbers that it has in one.

    With Triton the same bits, but for Mamba-2, whose long steps it follows in chunks. PyTorch's
    silu rounds the last numbers of a tensor in another way.
    """
    compute, given, *_ = make(implementation)
    num = len(given[0])
    whole = make_batch((num,), places=[(2, 4)])
    expected = compute(given, whole)
    states = make_batch((num,), places=[(2, 4)]).states
    parts, place = [], 2
    for start, end in ((0, 1), (1, 3), (3, 20), (20, num)):
        batch = make_batch((end - start,), places=[(place, 4)], states=states)
        parts.append(compute([part[start:end] for part in given], batch))
        place = 4
    same = {"rtol": 0.0, "atol": 0.0}
    if implementation == "torch" or make is follow_mamba:
        same = {"rtol": 1e-4, "atol": 1e-5}
    assert_near(torch.cat(parts), expected, **same)
    assert_near(states[4], whole.states[4], equal_nan=True, **same)


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    makes = {
        "conv-fp32": partial(convolve, dtype=torch.float32, kernel_size=4, has_bias=True),
        "conv-bf16": partial(convolve, dtype=torch.bfloat16, kernel_size=3, has_bias=False),
        "delta": follow_delta,
        "mamba": follow_mamba,
        "mamba-wide": partial(follow_mamba, shape=WIDE),
    }
    found: dict[str, Callable[[], None]] = {}
    for name, make in makes.items():
        found[name] = partial(check, make, implementation)
        found[f"{name}-cuts"] = partial(check_cuts, make, implementation)
    return found


if __name__ == "__main__":
    report(checks("triton"))
