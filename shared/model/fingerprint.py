"""A short name for what a model computes: equal on every host, different for other weights."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from shared.model.checkpoint_files import find_checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Files up to this size are read whole; of larger ones the header and a page of every so many
#: bytes, which meets every large tensor and takes seconds for a large model.
_WHOLE_BYTES = 64 << 20
_PAGE_BYTES = 4096
_STRIDE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 100 << 20
#: Keys of config.json that say how it was written, not what it computes.
_IRRELEVANT = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}


def fingerprint_checkpoint(model_dir: Path, raw_config: Mapping[str, Any], dtype: str) -> str:
    """Hex SHA-256 over the config, the dtype, and the shards: names, sizes, headers, samples."""
    digest = _start(raw_config, dtype)
    for path in find_checkpoint_files(model_dir).shards:
        _add_file(digest, path)
    return digest.hexdigest()


def fingerprint_dummy(raw_config: Mapping[str, Any], dtype: str, seed: int) -> str:
    """The same for weights that a seed makes."""
    digest = _start(raw_config, dtype)
    digest.update(f"dummy:{seed}".encode())
    return digest.hexdigest()


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name}:{size}\n".encode())
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
            return
        length = file.read(8)  # safetensors: the length of the JSON header comes first
        digest.update(length)
        digest.update(file.read(min(int.from_bytes(length, "little"), _MAX_HEADER_BYTES)))
        for offset in range(0, size, _STRIDE_BYTES):
            file.seek(offset)
            digest.update(file.read(_PAGE_BYTES))


def _start(raw_config: Mapping[str, Any], dtype: str) -> hashlib._Hash:
    relevant = {key: value for key, value in raw_config.items() if key not in _IRRELEVANT}
    canonical = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"baton.model.v1\n{dtype}\n{canonical}\n".encode())
