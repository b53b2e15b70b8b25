"""Comparison of a checkpoint's headers with its config before any memory is allocated.

A config can claim terabytes in two digits. Headers cannot: safetensors refuses files whose tensors
overlap, leave gaps or do not match the file's length, so the declared bytes are on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from shared.errors import ModelLoadError
from shared.model.checkpoint.files import find_checkpoint_files
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import stored_names
from shared.model.weight_map import EMBEDDING, HEAD, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.spec import DecoderSpec
    from shared.model.weight_map import WeightMap

#: Maximum size of a header; the parsed JSON takes several times its size.
MAX_HEADER_BYTES = 64 * 2**20
_LENGTH_BYTES = 8
#: Up to this number of missing tensors, the loader reports them all by name.
MAX_MISSING = 64


def check_headers(model_dir: Path, spec: DecoderSpec) -> None:
    """Refuse a config whose sizes differ from those of the stored tensors.

    Raises:
        ModelLoadError: names the file, and the tensor if there is one.
    """
    files = find_checkpoint_files(model_dir)
    shapes: dict[str, list[int]] = {}
    wanted = stored_names(spec)
    for path in files.shards:
        shapes |= _shapes(path, spec, wanted)
    for name, stored in wanted.items():
        shape = shapes.get(name)
        if shape is not None and tuple(shape) != stored.shape:
            raise ModelLoadError(
                f"{files.expected_in(name)}: tensor {name!r} has shape {shape}, "
                f"the config asks for {list(stored.shape)}"
            )
    # Either of the two serves as both.
    ends = {name_of(wanted, EMBEDDING), name_of(wanted, HEAD)}
    missing = wanted.keys() - shapes.keys() - ends
    if not shapes.keys() & ends:
        missing |= ends
    elif len(missing) <= MAX_MISSING:
        return
    name = min(missing)
    # Without it, its size, or the number of layers, is only the config's claim.
    raise ModelLoadError(f"{files.expected_in(name)}: tensor {name!r} is missing")


def _shapes(path: Path, spec: DecoderSpec, wanted: WeightMap) -> dict[str, list[int]]:
    try:
        with path.open("rb") as raw:
            num_bytes = int.from_bytes(raw.read(_LENGTH_BYTES), "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise ModelLoadError(
                f"{path} is damaged or truncated: its header claims {num_bytes} bytes"
            )
        with safe_open(path, framework="np") as file:
            names = {stored: own_name(spec, wanted, stored) for stored in file.keys()}  # noqa: SIM118 it is not a dict
            return {
                name: list(file.get_slice(stored).get_shape())
                for stored, name in names.items()
                if name is not None and name in wanted
            }
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error
