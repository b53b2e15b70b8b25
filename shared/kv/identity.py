"""The identity of KV blocks: two blocks have one hash only if their computed bytes are equal.

`KVIdentity` is the only caller of `block_hash`. Router, engine, reuse between workers, offload and
the directory's self-check all hash through it, so that inputs that change a byte of KV are listed
in one place. Inputs that change none (the connector, the device, the number of ranks) are not in
it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.kv.block_hash import HASH_BYTES, block_hash, digest, hash_blocks, root_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "HASH_BYTES",
    "NO_TOKEN",
    "KVIdentity",
    "PlacedItem",
    "block_key",
    "block_keys",
    "embedding_digest",
    "group_of",
    "model_identity",
    "namespace_hash",
]

#: In a prompt, where an embedding is given in place of a token. No text, no vocabulary and no wire
#: message has it, and a block with one has a hash only with the embedding's digest.
NO_TOKEN = -1
#: The same in a block's hash. A block of tokens alone has no extras, so that none equals it.
_NO_TOKEN_CODE = 2**32 - 1


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An image or a sound whose rows replace a range of a prompt's tokens."""

    #: Hash of the item's content, never of its name.
    digest: bytes
    #: The first token that it replaces.
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """Index after the last replaced token."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class KVIdentity:
    """Everything besides token ids that the bytes of a sequence's blocks depend on."""

    #: Digest of the model and the block's layout: see `namespace_hash`.
    namespace: bytes
    #: Separates the caches of tenants.
    salt: bytes = b""
    #: Digest of the adapter's weights; empty without an adapter.
    adapter: bytes = b""
    #: In the order of their positions, without overlap.
    items: tuple[PlacedItem, ...] = ()
    #: By position in the sequence: the digest of the embedding that is given in place of a token.
    embeds: Mapping[int, bytes] = field(default_factory=dict, hash=False)

    def hash_blocks(
        self, token_ids: Sequence[int], block_size: int, behind: Sequence[bytes] = ()
    ) -> list[bytes]:
        """Return the hashes of the full blocks of `token_ids`.

        `behind`: the hashes of the blocks before them, so the first token of `token_ids` is token
        number `len(behind) * block_size` of the sequence. A rest shorter than a block has no hash.

        Raises:
            struct.error: NO_TOKEN is at a place without an embedding.
        """
        parent = behind[-1] if behind else root_hash(self.namespace, self.adapter, self.salt)
        if not self.items and not self.embeds:
            return hash_blocks(parent, token_ids, block_size)
        hashes = []
        for start in range(0, len(token_ids) - block_size + 1, block_size):
            first = len(behind) * block_size + start
            own = token_ids[start : start + block_size]
            ids = [_NO_TOKEN_CODE if first + i in self.embeds else t for i, t in enumerate(own)]
            parent = block_hash(parent, ids, self._extras(first, block_size))
            hashes.append(parent)
        return hashes

    def _extras(self, first: int, block_size: int) -> Iterator[bytes]:
        """Yield digest and position of each item that begins in or extends into a block, and a
        digest of its embeddings and their places.
        """
        for item in self.items:
            if item.start < first + block_size and first < item.end:
                yield item.digest + struct.pack("<iI", item.start - first, item.num_tokens)
        places = [i for i in range(block_size) if first + i in self.embeds]
        if places:
            own = (struct.pack("<I", i) + self.embeds[first + i] for i in places)
            yield digest(b"baton.kv.embeds.v1", *own)


def embedding_digest(dtype: str, numbers: bytes) -> bytes:
    """Return the digest of an embedding, for `KVIdentity.embeds`."""
    return digest(b"baton.kv.embedding.v1", dtype.encode(), numbers)


def block_key(block_hash: bytes, group: int) -> bytes:
    """Return the key of a group's block: the hash of its tokens, and the group if not the first.

    Tokens are hashed once for all groups. Pools, tiers and files use this key.
    """
    return block_hash + bytes([group]) if group else block_hash


def block_keys(block_hashes: Sequence[bytes], num_groups: int) -> Sequence[bytes]:
    """Return the keys of all groups' blocks, block by block."""
    if num_groups == 1:
        return block_hashes
    return [block_key(each, group) for each in block_hashes for group in range(num_groups)]


def group_of(key: bytes) -> int:
    """Return the group in a key."""
    return key[HASH_BYTES] if len(key) > HASH_BYTES else 0


def namespace_hash(
    *,
    model_fingerprint: str,
    dtype: str,
    kv_format: str,
    layout_version: int,
    block_size: int,
    groups: bytes = b"",
) -> bytes:
    """Return the digest of everything that workers must have in common to share blocks.

    `kv_format` is `KVLayout.format`, `groups` is `KVLayout.grouping`. The directory has the digest
    in hexadecimal.
    """
    return digest(
        b"baton.kv.namespace.v1",
        model_fingerprint.encode(),
        dtype.encode(),
        kv_format.encode(),
        struct.pack("<I", layout_version),
        struct.pack("<I", block_size),
        *((groups,) if groups else ()),
    )


def model_identity(model_fingerprint: str, kv_format: str) -> bytes:
    """Return the digest of everything that workers must have in common to write one answer.

    It covers what decides their tokens: the fingerprint covers weights, config and dtype. The block
    size does not affect tokens.
    """
    return digest(b"baton.model.identity.v1", model_fingerprint.encode(), kv_format.encode())
