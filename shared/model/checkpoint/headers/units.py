"""The inputs of a checkpoint's matrices that stay together. Reads headers only."""

from __future__ import annotations

from collections import defaultdict
from math import lcm
from typing import TYPE_CHECKING

from shared.gguf.codes import FORMS
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.gguf.file import read_parts
from shared.model.checkpoint.headers.contents import read_contents
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.wrapper import own_name
from shared.model.sharding.feed_forwards import ANY_EXPERT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.spec.decoder import DecoderSpec

_EXPERTS = "mlp.experts."
_GGUF = ".gguf"


def read_units(model_dir: Path, spec: DecoderSpec) -> Mapping[int, Mapping[str, int]]:
    """Return by layer, by a linear's path in it, the inputs that share a scale.

    Of experts it is that of all, with {} for a number.

    Raises:
        ModelLoadError: a file is damaged.
    """
    contents = read_contents(find_checkpoint_files(model_dir).shards, spec)
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for stored, tensor in contents.tensors.items():
        wanted = contents.names.get(own_name(spec, contents.names, stored))
        unit = _unit(stored, tensor)
        if wanted is None or wanted.part.layer is None or unit == 1:
            continue
        path = wanted.part.module.split(".", 2)[2]
        if path.startswith(_EXPERTS):
            name = path.removeprefix(_EXPERTS).partition(".")[2]
            path = f"{_EXPERTS}{ANY_EXPERT}.{name}"
        units = found[wanted.part.layer]
        units[path] = lcm(unit, units.get(path, 1))
    return found


def _unit(name: str, tensor: TensorHeader | StoredMatrix) -> int:
    if isinstance(tensor, StoredMatrix):
        rule = tensor.layout.inputs
        rounded = None if rule is None else rule.group
        return lcm(tensor.layout.group or 1, rounded or 1)
    if tensor.path.suffix != _GGUF:
        return 1
    form = FORMS.get(read_parts(tensor.path)[name].stored.type.name)
    return 1 if form is None else form.group
