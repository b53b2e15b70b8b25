"""The checksums of a transfer. Both sides compute them; neither trusts the other's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.layout import KVLayout


def block_checksum(row: NDArray[np.uint8]) -> int:
    """xxh3-64 of one block's bytes."""
    return int(xxhash.xxh3_64_intdigest(row.data))


def transfer_digest(checksums: NDArray[np.uint64]) -> int:
    """xxh3-64 over the little-endian block checksums in index order."""
    return int(xxhash.xxh3_64_intdigest(checksums.astype("<u8", copy=False).tobytes()))


def layout_fingerprint(layout: KVLayout) -> int:
    """A number that differs when any field of the layout does, equal on every host."""
    fields = (
        layout.version,
        layout.dtype,
        layout.num_layers,
        layout.num_kv_heads,
        layout.block_size,
        layout.head_dim,
    )
    return int(xxhash.xxh3_64_intdigest("/".join(map(str, fields)).encode()))
