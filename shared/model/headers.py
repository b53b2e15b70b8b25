"""Compares a checkpoint's headers with its config before anything of either's size is allocated.

A config can ask for terabytes in two digits. The headers cannot: safetensors refuses files whose
tensors overlap, leave gaps or are not as long as the file, so what they declare is on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from shared.errors import ModelLoadError
from shared.model.checkpoint_files import find_checkpoint_files

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.config import ModelConfig

#: What a header may be; it is JSON, which takes several times its size once it is read.
MAX_HEADER_BYTES = 64 * 2**20
_LENGTH_BYTES = 8
#: So few are left to the loader, which names every one that is missing.
MAX_MISSING = 64


def check_headers(model_dir: Path, config: ModelConfig) -> None:
    """Refuse a config whose sizes are not those of the stored tensors.

    Only one tensor of each kind, and one of each layer: the loader compares all of them later.

    Raises:
        ModelLoadError: names the file, and the tensor if there is one.
    """
    files = find_checkpoint_files(model_dir)
    shapes: dict[str, list[int]] = {}
    wanted = _wanted(config)
    for path in files.shards:
        shapes |= _shapes(path, wanted)
    for name, shape in wanted.items():
        stored = shapes.get(name)
        if stored is not None and tuple(stored) != shape:
            raise ModelLoadError(
                f"{files.expected_in(name)}: tensor {name!r} has shape {stored}, "
                f"the config asks for {list(shape)}"
            )
    missing = wanted.keys() - shapes.keys() - _ENDS
    if not shapes.keys() & _ENDS:
        missing |= _ENDS
    elif len(missing) <= MAX_MISSING:
        return
    name = min(missing)
    # Without it, its size, or the number of layers, is only what the config claims.
    raise ModelLoadError(f"{files.expected_in(name)}: tensor {name!r} is missing")


_ENDS = frozenset({"lm_head.weight", "model.embed_tokens.weight"})


def _wanted(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(
        _ENDS, (config.vocab_size, config.hidden_size)
    )
    query = (config.num_heads * config.head_dim, config.hidden_size)
    gate = (config.intermediate_size, config.hidden_size)
    for number in range(config.num_layers):
        wanted[f"model.layers.{number}.self_attn.q_proj.weight"] = query
        wanted[f"model.layers.{number}.mlp.gate_proj.weight"] = gate
    return wanted


def _shapes(path: Path, wanted: dict[str, tuple[int, ...]]) -> dict[str, list[int]]:
    try:
        with path.open("rb") as raw:
            num_bytes = int.from_bytes(raw.read(_LENGTH_BYTES), "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise ModelLoadError(
                f"{path} is damaged or truncated: its header claims {num_bytes} bytes"
            )
        with safe_open(path, framework="np") as file:
            names = wanted.keys() & set(file.keys())
            return {name: list(file.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error
