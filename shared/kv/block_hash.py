"""Content hashes of KV blocks: equal content has an equal hash in every process, forever.

A hash is SHA-256 over the parent's hash and the block's token ids. The chain starts at a root with
everything else that the bytes of a block depend on, so blocks of different models, dtypes, layouts,
adapters or tenants never share a hash. Python's `hash()` is not used. The caller is
`identity.KVIdentity`, which has these inputs.

Every field is preceded by its length as u32 little-endian, which makes the encoding injective:

    namespace = H("baton.kv.namespace.v1", fingerprint, dtype, KV format, layout version,
                  block size)
    root      = H("baton.kv.root.v1", namespace, adapter, salt)
    block     = H("baton.kv.block.v1", parent, token ids as u32 little-endian, extra, …)
    embedding = H("baton.kv.embedding.v1", dtype, its numbers little-endian)

One of the extras is H("baton.kv.embeds.v1", place and embedding, …), if embeddings are given in
place of the block's tokens.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HASH_BYTES = 32


def root_hash(namespace: bytes, adapter: bytes = b"", salt: bytes = b"") -> bytes:
    """Return the parent of a sequence's first block."""
    return digest(b"baton.kv.root.v1", namespace, adapter, salt)


def block_hash(parent: bytes, token_ids: Sequence[int], extras: Iterable[bytes] = ()) -> bytes:
    """Return the hash of one full block. `extras`: content other than token ids."""
    packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return digest(b"baton.kv.block.v1", parent, packed, *extras)


def hash_blocks(root: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Return `block_hash` of each full block of `token_ids`; the first one's parent is `root`.

    Three times as fast as block by block: a router hashes every prompt.
    """
    num_blocks = len(token_ids) // block_size
    num_tokens = num_blocks * block_size
    packed = struct.pack(f"<{num_tokens}I", *token_ids[:num_tokens])
    tag = b"baton.kv.block.v1"
    head = _u32(len(tag)) + tag + _u32(len(root))
    block_bytes = 4 * block_size
    middle = _u32(block_bytes)
    sha256 = hashlib.sha256
    hashes = []
    parent = root
    for start in range(0, 4 * num_tokens, block_bytes):
        # The encoding of `digest` for the same fields.
        parent = sha256(head + parent + middle + packed[start : start + block_bytes]).digest()
        hashes.append(parent)
    return hashes


def digest(*fields: bytes) -> bytes:
    """Return the SHA-256 of the fields, each with its length before it."""
    return hashlib.sha256(b"".join(_u32(len(field)) + field for field in fields)).digest()


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)
