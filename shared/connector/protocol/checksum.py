"""The checksums of a transfer. Both sides compute them; neither relies on the other's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shared.kv.layout import LAYOUT_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shared.kv.layout import KVLayout


def block_checksum(block: NDArray[np.uint8]) -> int:
    """Return xxh3-64 of one block's bytes."""
    return int(xxhash.xxh3_64_intdigest(block.data))


def piece_checksum(blocks: NDArray[np.uint64]) -> int:
    """Return xxh3-64 over the little-endian checksums of a piece's blocks in index order."""
    return int(xxhash.xxh3_64_intdigest(blocks.astype("<u8", copy=False).tobytes()))


def transfer_digest(pieces: Mapping[int, int]) -> int:
    """Return xxh3-64 over first index and checksum of every piece in order, as u64 (LE)."""
    table = np.array(sorted(pieces.items()), "<u8")
    return int(xxhash.xxh3_64_intdigest(table.tobytes()))


def layout_fingerprint(layout: KVLayout) -> int:
    """Return a number that depends on every field of the layout, equal on every host."""
    first, *others = layout.groups
    fields = [
        layout.version,
        layout.dtype,
        first.num_layers,
        first.num_kv_heads,
        layout.block_size,
        first.head_dim,
    ]
    if layout.version > LAYOUT_VERSION:
        fields += [first.kind, first.window]
    for group in others:
        fields += [group.num_layers, group.num_kv_heads, group.head_dim, group.kind, group.window]
    fields += [group.state_size for group in layout.groups if group.state_size]
    if layout.scales:
        fields.append(layout.scales)
    return int(xxhash.xxh3_64_intdigest("/".join(map(str, fields)).encode()))
