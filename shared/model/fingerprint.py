"""A short name for what a model computes: equal on every host, different for other weights."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from shared.model.weights import shard_paths

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: A page of every so many bytes: finds other weights at once and reads a large model in seconds.
_PAGE_BYTES = 4096
_STRIDE_BYTES = 1 << 20
#: Keys of config.json that say how it was written, not what it computes.
_IRRELEVANT = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


def fingerprint_checkpoint(model_dir: Path, raw_config: Mapping[str, Any], dtype: str) -> str:
    """Hex SHA-256 over the config, the dtype, and samples of every shard."""
    digest = _start(raw_config, dtype)
    for path in shard_paths(model_dir):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for offset in range(0, size, _STRIDE_BYTES):
                file.seek(offset)
                digest.update(file.read(_PAGE_BYTES))
    return digest.hexdigest()


def fingerprint_dummy(raw_config: Mapping[str, Any], dtype: str, seed: int) -> str:
    """The same for weights that a seed makes."""
    digest = _start(raw_config, dtype)
    digest.update(f"dummy:{seed}".encode())
    return digest.hexdigest()


def _start(raw_config: Mapping[str, Any], dtype: str) -> hashlib._Hash:
    relevant = {key: value for key, value in raw_config.items() if key not in _IRRELEVANT}
    canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"baton.model.v1\n{dtype}\n{canonical}\n".encode())
