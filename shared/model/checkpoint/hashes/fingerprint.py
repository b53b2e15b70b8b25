"""A short name of a model's computation: equal on every host, different for other weights."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Keys of config.json about its origin, not about the computation.
_IRRELEVANT = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


def fingerprint_checkpoint(
    shards: Iterable[tuple[str, bytes]], raw_config: Mapping[str, Any], dtype: str
) -> str:
    """Return hexadecimal SHA-256 over config, dtype, and name and digest of every shard."""
    digest = _start(raw_config, dtype)
    for name, shard_digest in shards:
        digest.update(f"{name}:{shard_digest.hex()}\n".encode())
    return digest.hexdigest()


def fingerprint_dummy(raw_config: Mapping[str, Any], dtype: str, seed: int) -> str:
    """Return the fingerprint of weights made from a seed."""
    digest = _start(raw_config, dtype)
    digest.update(f"dummy:{seed}".encode())
    return digest.hexdigest()


def _start(raw_config: Mapping[str, Any], dtype: str) -> hashlib._Hash:
    relevant = {key: value for key, value in raw_config.items() if key not in _IRRELEVANT}
    canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"baton.model.v2\n{dtype}\n{canonical}\n".encode())
