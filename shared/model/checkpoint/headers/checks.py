"""Comparison of a checkpoint's headers with its config before any memory is allocated.

A config can claim terabytes in two digits. Headers cannot: safetensors refuses files whose tensors
overlap, leave gaps or do not match the file's length, so the declared bytes are on the disk. What
follows from the config alone, the rotary angles, is compared with the files' size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.gguf.source import refusal_of
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.headers.contents import read_contents
from shared.model.checkpoint.headers.shape_fields import contradiction
from shared.model.checkpoint.headers.surplus import check_surplus
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.matrices.shapes import check_matrix
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import FAMILIES
from shared.model.weight_map import EMBEDDING, HEAD, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import Stored

#: Rotary angles may have so many bytes for each byte of the files, and so many more.
_ANGLES_PER_BYTE, _MORE_ANGLES = 8, 128 * 2**20


def check_headers(model_dir: Path, spec: DecoderSpec) -> None:
    """Refuse a config that the stored tensors contradict: by their sizes, or by their names.

    Raises:
        ModelLoadError: names the file, and the tensor if there is one.
    """
    files = find_checkpoint_files(model_dir)
    _check_positions(model_dir, files, spec)
    family, contents = FAMILIES[spec.architecture], read_contents(files.shards, spec)
    wanted, found = contents.names, set[str]()
    for stored_name, tensor in contents.tensors.items():
        name = own_name(spec, wanted, stored_name)
        if name not in wanted:
            check_surplus(family, spec, tensor.path, name, tensor.shape)
        elif isinstance(tensor, StoredMatrix):
            check_size(tensor, name, wanted[name])
        elif tensor.shape != wanted[name].shape:
            why = contradiction(spec, name, tensor.shape, wanted[name].shape)
            raise ModelLoadError(refusal_of(tensor.path, why))
        found.add(name)
    # Without a tensor its size, or the number of layers, is only the config's claim.
    missing = wanted.keys() - found
    ends = {name_of(wanted, EMBEDDING), name_of(wanted, HEAD)}
    if spec.is_tied and found & ends:  # either of the two serves as both
        missing -= ends
    if missing:
        raise files.lacks(missing, len(wanted))


def _check_positions(model_dir: Path, files: CheckpointFiles, spec: DecoderSpec) -> None:
    """Refuse angles that no model of this size has."""
    num_bytes, size = 4 * spec.num_angles, sum(path.stat().st_size for path in files.shards)
    if num_bytes > _ANGLES_PER_BYTE * size + _MORE_ANGLES:
        why = (
            f"max_position_embeddings, or rope_scaling, asks for {spec.num_positions} positions, "
            f"whose angles take {num_bytes} bytes; all weights have {size}: the config is another "
            "model's"
        )
        raise ModelLoadError(refusal_of(model_dir / "config.json", why))


def check_size(matrix: StoredMatrix, name: str, wanted: Stored) -> tuple[int, int]:
    """Return rows and columns of a matrix, if its tensors have them.

    Raises:
        ModelLoadError: they have not, or the part is no matrix.
    """
    size = wanted.matrix_size
    if size is None:
        raise ModelLoadError(f"{matrix.path}: tensor {name!r} is no matrix, but stored quantised")
    check_matrix(matrix, *size)
    return size
