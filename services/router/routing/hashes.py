"""Hashes of a prompt's blocks for all workers that may serve it: their block sizes may differ."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from shared.directory.generations import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shared.directory.base import WorkerRecord
    from shared.kv.identity import KVIdentity

#: By namespace: hashes of the prompt's full blocks, in order. Workers of one namespace have blocks
#: of one size.
BlockHashes: TypeAlias = "Mapping[str, Sequence[bytes]]"
#: By namespace: its block size.
HashSpaces: TypeAlias = "Mapping[str, int]"

NO_HASHES: BlockHashes = MappingProxyType({})
NO_SPACES: HashSpaces = MappingProxyType({})


def spaces_of(records: Iterable[WorkerRecord]) -> HashSpaces:
    """Return the namespaces of the weights that most of these workers have."""
    found = Counter((identity_of(each), each.namespace, each.block_size) for each in records)
    weights: Counter[str] = Counter()
    for (identity, _, _), number in found.items():
        weights[identity] += number
    if not weights:
        return NO_SPACES
    most, _ = weights.most_common(1)[0]
    return {
        namespace: size
        for (identity, namespace, size) in found
        if identity == most and _is_hexadecimal(namespace)
    }


def hashed(
    spaces: HashSpaces, token_ids: Sequence[int], identify: Callable[[bytes], KVIdentity]
) -> BlockHashes:
    """Return the hashes of a prompt. identify: returns what its blocks depend on in a namespace."""
    return {
        namespace: identify(bytes.fromhex(namespace)).hash_blocks(token_ids, block_size)
        for namespace, block_size in spaces.items()
    }


def _is_hexadecimal(namespace: str) -> bool:
    try:
        bytes.fromhex(namespace)
    except ValueError:
        return False
    return True
