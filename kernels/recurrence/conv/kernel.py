"""Causal convolutions by channel, in Triton: a program computes a tile of a sequence's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.states import StateBatch

#: Channels and tokens of a program. One whose rows begin a sequence reads the state, and the same
#: one writes it, since both may be in one block. A tile has at least as many rows as the state.
CHANNELS = 128
TOKENS = 16
NUM_WARPS = 4


@triton.jit
def causal_conv_kernel(
    rows,
    weight,
    bias,  # None without one
    states,
    blocks,
    query_start_loc,
    out,
    channels,
    num_tiles,  # of tokens, of each sequence
    stride_rows,
    stride_states,
    KEPT: tl.constexpr,  # rows of a state
    ACTIVATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    sequence = tl.program_id(0) // num_tiles
    first = tl.program_id(0) % num_tiles * TOKENS
    start = tl.load(query_start_loc + sequence).to(tl.int64)
    num_tokens = (tl.load(query_start_loc + sequence + 1) - start).to(tl.int32)
    if (first > 0) & (first >= num_tokens):
        return
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    has_channel = channel < channels
    before = tl.load(blocks + sequence * 2).to(tl.int64)
    old = states + before * stride_states + channel
    # Places before the sequence's new tokens are negative; without a state, none is read there.
    end_old = tl.where(before >= 0, 0, -KEPT)
    own = rows + start * stride_rows + channel
    token = first + tl.arange(0, TOKENS)
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for at in tl.static_range(KEPT + 1):
        source = token - KEPT + at
        seen = tl.load(
            own[None, :] + source.to(tl.int64)[:, None] * stride_rows,
            mask=((source >= 0) & (source < num_tokens))[:, None] & has_channel[None, :],
            other=0.0,
        ).to(tl.float32)
        if first == 0:
            seen += tl.load(
                old[None, :] + (source + KEPT)[:, None] * channels,
                mask=(source < end_old)[:, None] & has_channel[None, :],
                other=0.0,
            )
        factor = tl.load(weight + channel * (KEPT + 1) + at, mask=has_channel, other=0.0)
        total += seen * factor.to(tl.float32)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=has_channel, other=0.0).to(tl.float32)[None, :]
    if ACTIVATE:
        total = total / (1.0 + tl.exp(-total))
    tl.store(
        out + (start + token)[:, None] * channels + channel[None, :],
        total,
        mask=(token < num_tokens)[:, None] & has_channel[None, :],
    )
    if first == 0:
        # All rows are read before one is written: a row moves to another place of the block.
        row = tl.arange(0, TOKENS)
        source = num_tokens - KEPT + row
        last = tl.load(
            own[None, :] + source.to(tl.int64)[:, None] * stride_rows,
            mask=((source >= 0) & (row < KEPT))[:, None] & has_channel[None, :],
            other=0.0,
        ).to(tl.float32)
        last += tl.load(
            old[None, :] + (source + KEPT)[:, None] * channels,
            mask=((source < end_old) & (row < KEPT))[:, None] & has_channel[None, :],
            other=0.0,
        )
        tl.debug_barrier()
        after = tl.load(blocks + sequence * 2 + 1).to(tl.int64)
        tl.store(
            states + after * stride_states + row[:, None] * channels + channel[None, :],
            last,
            mask=(row < KEPT)[:, None] & has_channel[None, :],
        )


def launch(
    rows: Tensor, weight: Tensor, bias: Tensor | None, batch: StateBatch, *, activate: bool
) -> Tensor:
    """See `kernels.recurrence.conv.causal_conv`."""
    channels, kernel_size = rows.shape[1], weight.shape[2]
    tokens = max(TOKENS, triton.next_power_of_2(kernel_size - 1))
    out = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    num_tiles = max(1, triton.cdiv(max(batch.query_lens_list), tokens))
    grid = (len(batch.query_lens_list) * num_tiles, triton.cdiv(channels, CHANNELS))
    causal_conv_kernel[grid](
        rows,
        weight,
        bias,
        batch.states,
        batch.blocks,
        batch.query_start_loc,
        out,
        channels,
        num_tiles,
        rows.stride(0),
        batch.states.stride(0),
        KEPT=kernel_size - 1,
        ACTIVATE=activate,
        HAS_BIAS=bias is not None,
        TOKENS=tokens,
        CHANNELS=CHANNELS,
        num_warps=NUM_WARPS,
    )
    return out
