"""KV memory is given back, by its owner or when it is dropped."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from shared.errors import ConfigError
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

LAYOUT = KVLayout.single(num_layers=2, num_kv_heads=2, block_size=4, head_dim=8, dtype="float32")


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_what_is_closed_is_given_back_once() -> None:
    memory = KVMemory(LAYOUT, 3)
    fd = memory.fd
    memory.close()
    assert not is_open(fd)
    # Its number is another file's from now on.
    other = os.open("/dev/null", os.O_RDONLY)
    memory.close()
    del memory
    assert is_open(other)
    os.close(other)


def test_what_is_dropped_is_given_back() -> None:
    memory = KVMemory(LAYOUT, 3)
    fd, rows = memory.fd, memory.blocks
    rows[1] = 7
    del memory
    assert not is_open(fd)
    # An array outlives it: the mapping is the array's too.
    assert np.unique(rows[1]).tolist() == [7]


def test_memory_of_another_process_is_mapped_only_if_it_is_of_that_size() -> None:
    memory = KVMemory(LAYOUT, 3)
    mapped = KVMemory.attached(LAYOUT, 3, os.dup(memory.fd))
    memory.blocks[2] = 9
    assert np.unique(mapped.blocks[2]).tolist() == [9]
    mapped.close()
    assert is_open(memory.fd)
    fd = os.dup(memory.fd)
    with pytest.raises(ConfigError, match="not that of 2 blocks"):
        KVMemory.attached(LAYOUT, 2, fd)
    assert not is_open(fd)
    memory.close()


def test_memory_that_cannot_be_had_is_a_clear_error_and_leaves_no_descriptor() -> None:
    gc.collect()  # descriptors of other tests' garbage are not closed in between
    num_before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(ConfigError, match="cannot map"):
        KVMemory(LAYOUT, 1 << 50)
    assert len([*Path("/proc/self/fd").iterdir()]) == num_before
