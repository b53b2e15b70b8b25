"""Choosing tokens in Triton: one program per row, no sort, one launch for greedy and random rows.

A filter is a threshold on the logit. It is found by narrowing an interval: every pass over the row
weighs the values above three pivots, until one value is left in the interval, so the threshold is
exact. Pivots in place of sorting are from FlashInfer (Z. Ye et al., "FlashInfer: Efficient and
customizable attention engine for LLM inference serving", 2025, and its "Sorting-free GPU kernels
for LLM sampling"). FlashInfer's rejection loop takes a varying number of random numbers. Here the
search ends with the threshold, and one random number decides.

Thresholds are on the raw logits: two logits that become equal only when they are divided by the
temperature are told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.sampling.drawing import Filters

_TILE = 4096
NUM_WARPS = 16


@triton.jit
def _load(source, start, vocab_size, TILE: tl.constexpr):
    """Return a tile of the row as float32, with -inf beyond the row's end."""
    column = start + tl.arange(0, TILE)
    values = tl.load(source + column, mask=column < vocab_size, other=float("-inf"))
    return values.to(tl.float32)


@triton.jit
def _threshold(
    source,
    vocab_size,
    peak,
    low,
    target,
    log2_scale,
    BY_WEIGHT: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return the largest value such that it and all larger ones weigh, or number, `target`.

    low: a lower bound of the result.
    """
    high = peak + tl.abs(peak) * 1.0e-6 + 1.0e-30  # above all values
    found = low
    searching = True
    while searching:
        width = high - low
        first, second, third = low + 0.25 * width, low + 0.5 * width, low + 0.75 * width
        above_first = tl.zeros([TILE], tl.float32)
        above_second = tl.zeros([TILE], tl.float32)
        above_third = tl.zeros([TILE], tl.float32)
        least = tl.full([TILE], float("inf"), tl.float32)
        most = tl.full([TILE], float("-inf"), tl.float32)
        for start in tl.range(0, vocab_size, TILE, num_stages=STAGES):
            value = _load(source, start, vocab_size, TILE)
            if BY_WEIGHT:
                weight = tl.exp2((value - peak) * log2_scale)
            else:
                weight = tl.full([TILE], 1.0, tl.float32)
            above_first += tl.where(value >= first, weight, 0.0)
            above_second += tl.where(value >= second, weight, 0.0)
            above_third += tl.where(value >= third, weight, 0.0)
            least = tl.minimum(least, tl.where(value >= low, value, float("inf")))
            most = tl.maximum(most, tl.where(value < high, value, float("-inf")))
        lowest = tl.min(least, 0)
        # With at most one value left in the interval, the least one from `low` on is the answer.
        searching = lowest < tl.max(most, 0)
        found = lowest
        if tl.sum(above_third, 0) >= target:
            low = third
        elif tl.sum(above_second, 0) >= target:
            low, high = second, third
        elif tl.sum(above_first, 0) >= target:
            low, high = first, second
        else:
            high = first
    return found


@triton.jit
def _invert(
    source,
    vocab_size,
    peak,
    floor,
    log2_scale,
    number,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return the token at which the cumulative distribution passes `number`.

    First the tile is found, then the token in it.
    """
    tile = tl.arange(0, NUM_TILES)
    sums = tl.zeros([NUM_TILES], tl.float64)
    for start in tl.range(0, vocab_size, TILE, num_stages=STAGES):
        value = _load(source, start, vocab_size, TILE)
        weight = tl.where(value >= floor, tl.exp2((value - peak) * log2_scale), 0.0)
        sums = tl.where(tile == start // TILE, tl.sum(weight, 0).to(tl.float64), sums)
    reached = tl.cumsum(sums, 0)
    total = tl.max(reached, 0)
    # Rounding must not move the target past the end, where only weights of zero follow.
    target = tl.minimum(number * total, total * (1.0 - 1.1102230246251565e-16))
    start = tl.sum((reached <= target).to(tl.int32), 0) * TILE
    rest = target - tl.max(tl.where(reached <= target, reached, 0.0), 0)
    value = _load(source, start, vocab_size, TILE)
    weight = tl.where(value >= floor, tl.exp2((value - peak) * log2_scale), 0.0)
    inside = tl.cumsum(weight.to(tl.float64), 0)
    rest = tl.minimum(rest, tl.max(inside, 0) * (1.0 - 1.1102230246251565e-16))
    return start + tl.sum((inside <= rest).to(tl.int32), 0)


@triton.jit
def choose_tokens_kernel(
    logits,
    numbers,
    temperature,
    top_k,
    top_p,
    min_p,
    tokens,
    vocab_size,
    stride_logits,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,  # at least vocab_size / TILE, a power of two
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * stride_logits
    best = tl.full([TILE], float("-inf"), tl.float32)
    place = tl.zeros([TILE], tl.int32)
    least = tl.full([TILE], float("inf"), tl.float32)
    num_nan = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, vocab_size, TILE, num_stages=STAGES):
        value = _load(source, start, vocab_size, TILE)
        place = tl.where(value > best, start + tl.arange(0, TILE), place)
        best = tl.where(value > best, value, best)
        least = tl.minimum(least, tl.where(value > float("-inf"), value, float("inf")))
        num_nan += (value != value).to(tl.int32)
    peak = tl.max(best, 0)
    is_usable = (tl.sum(num_nan, 0) == 0) & (peak > float("-inf")) & (peak < float("inf"))
    warmth = tl.load(temperature + row)
    if is_usable & (warmth > 0.0):
        log2_scale = 1.4426950408889634 / warmth
        floor = tl.min(least, 0)
        ratio = tl.load(min_p + row)
        if ratio > 0.0:
            floor = tl.maximum(floor, peak + tl.log2(ratio) / log2_scale)
        count = tl.load(top_k + row)
        if (count > 0) & (count < vocab_size):
            # Logits of -inf do not count. With fewer than k others, the least of them is found.
            last = _threshold(
                source,
                vocab_size,
                peak,
                tl.min(least, 0),
                count.to(tl.float32),
                0.0,
                False,
                TILE,
                STAGES,
            )
            floor = tl.maximum(floor, last)
        share = tl.load(top_p + row)
        if share < 1.0:
            sums = tl.zeros([TILE], tl.float32)
            for start in tl.range(0, vocab_size, TILE, num_stages=STAGES):
                value = _load(source, start, vocab_size, TILE)
                sums += tl.where(value >= floor, tl.exp2((value - peak) * log2_scale), 0.0)
            total = tl.sum(sums, 0)
            # If all tokens were as unlikely as this, all together would weigh what may be cut.
            unlikely = (1.0 - share) * total / vocab_size
            low = tl.maximum(floor, peak + (tl.log2(unlikely) - 0.01) / log2_scale)
            floor = _threshold(
                source, vocab_size, peak, low, share * total, log2_scale, True, TILE, STAGES
            )
        token = _invert(
            source,
            vocab_size,
            peak,
            floor,
            log2_scale,
            tl.load(numbers + row),
            TILE,
            NUM_TILES,
            STAGES,
        )
    else:
        token = tl.min(tl.where(best == peak, place, vocab_size), 0)
        token = tl.where(is_usable, token, -1)
    tl.store(tokens + row, token.to(tl.int64))


def sampling_constants(*, vocab_size: int, stride: int) -> dict[str, int]:
    """Return the kernel's constants for rows `stride` numbers apart."""
    return {
        "TILE": _TILE,
        "NUM_TILES": triton.next_power_of_2(triton.cdiv(vocab_size, _TILE)),
        # Rows that are not aligned are loaded number by number; their addresses take registers.
        "STAGES": 3 if vocab_size % 16 == stride % 16 == 0 else 1,
    }


def launch(logits: Tensor, numbers: Tensor, filters: Filters) -> Tensor:
    """See `kernels.sampling.choose_tokens`. The last dimension of logits must be contiguous."""
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    choose_tokens_kernel[(num_rows,)](
        logits,
        numbers,
        filters.temperature,
        filters.top_k,
        filters.top_p,
        filters.min_p,
        tokens,
        vocab_size,
        logits.stride(0),
        **sampling_constants(vocab_size=vocab_size, stride=logits.stride(0)),
        num_warps=NUM_WARPS,
    )
    return tokens
