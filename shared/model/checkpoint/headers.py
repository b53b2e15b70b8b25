"""Comparison of a checkpoint's headers with its config before any memory is allocated.

A config can claim terabytes in two digits. Headers cannot: safetensors refuses files whose tensors
overlap, leave gaps or do not match the file's length, so the declared bytes are on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.files import find_checkpoint_files
from shared.model.checkpoint.shape_fields import contradiction
from shared.model.checkpoint.surplus import check_surplus
from shared.model.checkpoint.tensor_files import read_headers
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import FAMILIES, stored_names
from shared.model.weight_map import EMBEDDING, HEAD, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.spec import DecoderSpec


def check_headers(model_dir: Path, spec: DecoderSpec) -> None:
    """Refuse a config that the stored tensors contradict: by their sizes, or by their names.

    Raises:
        ModelLoadError: names the file, and the tensor if there is one.
    """
    files = find_checkpoint_files(model_dir)
    family, wanted = FAMILIES[spec.architecture], stored_names(spec)
    found: set[str] = set()
    for path in files.shards:
        for stored_name, header in read_headers(path).items():
            name = own_name(spec, wanted, stored_name)
            if name not in wanted:
                check_surplus(family, spec, path, name, header.shape)
            elif header.shape != wanted[name].shape:
                why = contradiction(spec, name, header.shape, wanted[name].shape)
                raise ModelLoadError(f"{path}: {why}")
            found.add(name)
    # Without a tensor its size, or the number of layers, is only the config's claim.
    missing = wanted.keys() - found
    ends = {name_of(wanted, EMBEDDING), name_of(wanted, HEAD)}
    if spec.is_tied and found & ends:  # either of the two serves as both
        missing -= ends
    if missing:
        raise files.lacks(missing, len(wanted))
