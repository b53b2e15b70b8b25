"""One matrix of a format, read as those of a checkpoint are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from shared.model.checkpoint.files.tensor_files import read_headers
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.matrices.unpacking import read_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix


def read(
    config: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path, size: tuple[int, int]
) -> QuantizedMatrix:
    """The matrix of these tensors, through a file."""
    path = folder / "model.safetensors"
    save_file({f"m{suffix}": part.contiguous() for suffix, part in tensors.items()}, path)
    own = find_format({"quantization_config": config})
    assert own is not None
    headers = {name.removeprefix("m"): header for name, header in read_headers(path).items()}
    assert headers.keys() <= own.suffixes
    layout = own.layout(Module(("m",)), headers)
    assert layout is not None
    return read_matrix(StoredMatrix("m", layout, headers), tensors, *size)
