"""Copies and hashes of blocks: in one pass by the native library, or in two without it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import structlog

from kernels.native import block_copy as native
from kernels.native.build import NativeUnavailableError
from kernels.native.library import load_library
from shared.connector.protocol.checksum import block_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Block = NDArray[np.uint8]

log = structlog.get_logger(__name__)


def prepare() -> None:
    """Load the library now, compiling it if needed, so that no transfer waits for that."""
    _has_library()


def copy_blocks(targets: Sequence[Block], sources: Sequence[Block]) -> NDArray[np.uint64]:
    """Copy each source to its target; return the checksums of the targets."""
    if _is_native(targets):
        return native.copy_blocks(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)
    return checksum_blocks(targets)


def checksum_blocks(blocks: Sequence[Block]) -> NDArray[np.uint64]:
    """Return the checksum of each block."""
    if _is_native(blocks):
        return native.checksum_blocks(blocks)
    return np.array([block_checksum(block) for block in blocks], np.uint64)


def _is_native(blocks: Sequence[Block]) -> bool:
    return bool(blocks) and blocks[0].nbytes >= native.SHORTEST_BLOCK_BYTES and _has_library()


@functools.cache
def _has_library() -> bool:
    try:
        load_library()
    except NativeUnavailableError as error:
        log.warning("native_block_copy_unavailable", reason=str(error))
        return False
    return True
