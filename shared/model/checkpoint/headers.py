"""Comparison of a checkpoint's headers with its config before any memory is allocated.

A config can claim terabytes in two digits. Headers cannot: safetensors refuses files whose tensors
overlap, leave gaps or do not match the file's length, so the declared bytes are on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from shared.errors import ModelLoadError
from shared.model.checkpoint.files import find_checkpoint_files
from shared.model.checkpoint.shape_fields import contradiction
from shared.model.checkpoint.surplus import check_surplus
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import FAMILIES, stored_names
from shared.model.weight_map import EMBEDDING, HEAD, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.spec import DecoderSpec

#: Maximum size of a header; the parsed JSON takes several times its size.
MAX_HEADER_BYTES = 64 * 2**20
_LENGTH_BYTES = 8


def check_headers(model_dir: Path, spec: DecoderSpec) -> None:
    """Refuse a config that the stored tensors contradict: by their sizes, or by their names.

    Raises:
        ModelLoadError: names the file, and the tensor if there is one.
    """
    files = find_checkpoint_files(model_dir)
    family, wanted = FAMILIES[spec.architecture], stored_names(spec)
    found: set[str] = set()
    for path in files.shards:
        for stored_name, shape in _shapes(path).items():
            name = own_name(spec, wanted, stored_name)
            if name not in wanted:
                check_surplus(family, spec, path, name, shape)
            elif tuple(shape) != wanted[name].shape:
                why = contradiction(spec, name, shape, wanted[name].shape)
                raise ModelLoadError(f"{path}: {why}")
            found.add(name)
    # Without a tensor its size, or the number of layers, is only the config's claim.
    missing = wanted.keys() - found
    ends = {name_of(wanted, EMBEDDING), name_of(wanted, HEAD)}
    if spec.is_tied and found & ends:  # either of the two serves as both
        missing -= ends
    if missing:
        raise files.lacks(missing, len(wanted))


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of a file's tensors, by name."""
    try:
        with path.open("rb") as raw:
            num_bytes = int.from_bytes(raw.read(_LENGTH_BYTES), "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise ModelLoadError(
                f"{path} is damaged or truncated: its header claims {num_bytes} bytes"
            )
        with safe_open(path, framework="np") as file:
            names = file.keys()
            return {name: list(file.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error
