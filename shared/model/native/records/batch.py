"""The sequences of a step as the native decoder takes them."""

from __future__ import annotations

from ctypes import c_size_t, c_void_p
from typing import TYPE_CHECKING

import torch

from kernels.native.structures import Batch
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionMetadata


def batch_record(
    token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, num_groups: int
) -> Batch:
    """Return the batch in the library's format, with `num_groups` groups that have no states.

    It owns nothing: the tensors must outlive the call.
    """
    num_seqs, max_blocks = metadata.block_tables.shape
    wanted = metadata.wanted
    pointers = c_void_p * num_groups
    groups = [metadata.of_group(number) for number in range(num_groups)]
    tables = [pointer(group.block_tables, torch.int32) for group in groups]
    slots = [pointer(group.slot_mapping, torch.int64) for group in groups]
    return Batch(
        num_tokens=len(token_ids),
        num_seqs=num_seqs,
        token_ids=pointer(token_ids, torch.int64),
        positions=pointer(positions, torch.int64),
        query_start_loc=pointer(metadata.query_start_loc, torch.int32),
        seq_lens=pointer(metadata.seq_lens, torch.int32),
        block_tables=pointers(*tables),
        max_blocks=max_blocks,
        slots=pointers(*slots),
        wanted=None if wanted is None else pointer(wanted, torch.int64),
        num_wanted=-1 if wanted is None else len(wanted),
    )


def place_states(batch: Batch, groups: Sequence[PagedCache], blocks: Tensor) -> None:
    """Add the groups with states, and their blocks of each sequence, to a batch."""
    states = [group for group in groups if isinstance(group, torch.Tensor)]
    for group in states:
        if group.dtype != torch.float32 or not group[0].is_contiguous():
            raise InternalError(f"states of {group.dtype} {group.stride()}")
    batch.states = (c_void_p * len(states))(*(group.data_ptr() for group in states))
    batch.state_strides = (c_size_t * len(states))(*(group.stride(0) for group in states))
    batch.state_blocks = pointer(blocks, torch.int32)


def pointer(tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a contiguous tensor of this dtype.

    Raises:
        InternalError: it is another one.
    """
    if tensor.dtype != dtype or not tensor.is_contiguous():
        raise InternalError(f"expected contiguous {dtype}, got {tensor.dtype} {tensor.stride()}")
    return tensor.data_ptr()
