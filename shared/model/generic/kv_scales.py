"""The scales of keys and values in the files of a model that transformers computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.parts import Parts, all_headers
from shared.model.checkpoint.kv_scales import Attentions, place_kv_scales

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.checkpoint.kv_scales import StoredKVScales
    from shared.model.spec.decoder import DecoderSpec

#: By the name of a projection: whose scale is that of what it returns.
_OUTPUTS = {"k_proj": (0,), "v_proj": (1,)}


def read_module_scales(
    files: CheckpointFiles, spec: DecoderSpec, module: PreTrainedModel
) -> StoredKVScales | None:
    """Return a checkpoint's scales by the layers of a module. None, and raises: `read_kv_scales`.

    Parts of the module have the names of the files.
    """
    own = find_format(spec.raw)
    found = {} if own is None else Parts.of(all_headers(files.shards), own).kv_scales
    if not found:
        return None
    return place_kv_scales(files, spec, found, _attentions(module))


def _attentions(module: PreTrainedModel) -> Attentions:
    """The parts with a layer's number, which they pass to their attention."""
    layers: dict[str, int] = {}
    outputs: dict[str, tuple[int, ...]] = {}
    for name, part in module.named_modules():
        number = getattr(part, "layer_idx", None)
        if isinstance(number, int):
            layers[name] = number
            outputs |= {f"{name}.{last}": kinds for last, kinds in _OUTPUTS.items()}
    return Attentions(layers, outputs)
