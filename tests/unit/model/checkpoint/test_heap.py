"""Sources of large blocks of memory, one inside the other."""

from __future__ import annotations

import ctypes

import torch

from shared.model.checkpoint.loading.heap import blocks_used_again, large_blocks_apart


class _Usage(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def is_apart(num_bytes: int) -> bool:
    """Return whether the C library takes a block of this size from the system."""
    usage = ctypes.CDLL(None).mallinfo2
    usage.restype = _Usage
    before = usage().hblkhd
    block = torch.empty(num_bytes, dtype=torch.uint8)
    return bool(usage().hblkhd - before >= block.nbytes)


def test_the_inner_source_ends_with_the_outer_one_as_before() -> None:
    with large_blocks_apart():
        assert is_apart(4 << 20)
        with blocks_used_again():
            assert not is_apart(4 << 20)
        assert is_apart(4 << 20)
    assert not is_apart(4 << 20)
    assert is_apart(64 << 20)
