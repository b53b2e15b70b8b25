"""Reads an adapter's folder, and checks all of it before anything is used."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import torch

from kernels.low_rank import LowRankPart
from shared.adapters.adapter import Adapter
from shared.adapters.config import read_adapter_config
from shared.adapters.targets import BaseModules
from shared.adapters.tensors import FILE_NAME, find_pairs
from shared.errors import AdapterError, ModelLoadError
from shared.model.checkpoint.files.tensor_files import open_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from shared.adapters.targets import AdapterBase
    from shared.adapters.tensors import StoredPair
    from shared.model.checkpoint.files.tensor_files import TensorFile

_SHOWN = b"baton.adapter.v1"


def read_adapter(folder: Path, model: AdapterBase, *, max_rank: int) -> Adapter:
    """Return the adapter of a folder as PEFT writes it, checked against its base.

    The tensors are the caller's: the files may change or vanish afterwards. `max_rank`: of any of
    its matrices. Only reads; may be called from any thread.

    Raises:
        AdapterError: it cannot be used with this base; names the file, and the key or the tensor.
    """
    config, base = read_adapter_config(folder), BaseModules(model)
    pairs = find_pairs(folder, config, base, max_rank=max_rank)
    parts: dict[str, list[LowRankPart]] = {}
    digest = hashlib.sha256(_SHOWN)
    try:
        with open_tensors(folder / FILE_NAME) as file:
            for pair in pairs:
                scale = config.scale_of(pair.module)
                a, b = _tensor(file, pair.a, folder), _tensor(file, pair.b, folder)
                _add(digest, pair, scale, a, b)
                own, rows = pair.target, pair.target.rows
                b = b if rows is None else b[torch.tensor(rows)]
                parts.setdefault(own.path, []).append(LowRankPart(own.first, a, b, scale))
    except ModelLoadError as error:
        raise AdapterError(str(error)) from error
    return Adapter(
        digest=digest.digest(),
        weights={
            path: sorted(own, key=lambda part: part.first) for path, own in sorted(parts.items())
        },
        max_rank=max(pair.rank for pair in pairs),
        folder=folder,
    )


def _tensor(file: TensorFile, name: str, folder: Path) -> Tensor:
    tensor = file.get_tensor(name).clone()
    if not tensor.isfinite().all():
        raise AdapterError(f"{folder}: tensor {name!r} has values that are not finite")
    return tensor


def _add(digest: hashlib._Hash, pair: StoredPair, scale: float, a: Tensor, b: Tensor) -> None:
    name = pair.module.encode()
    digest.update(struct.pack("<IId", len(name), pair.rank, scale) + name)
    for tensor in (a, b):
        kind = str(tensor.dtype).encode()
        digest.update(struct.pack("<IQ", len(kind), tensor.nbytes) + kind)
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
