"""What a checkpoint's files hold, as a decoder needs it: tensors, and matrices of few bits.

Reads headers only, and imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.layout import StoredMatrix
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.tensor_files import read_headers
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import FAMILIES, stored_names
from shared.model.weight_map import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from shared.model.checkpoint.formats.base import StoredFormat
    from shared.model.checkpoint.tensor_files import TensorHeader
    from shared.model.spec import DecoderSpec
    from shared.model.weight_map import WeightMap

_DENSE = ".weight"
#: Of queries, keys, values and weights of attention, whoever wrote them.
_KV_SCALES = tuple(
    f".{what}"
    for what in ("k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale", "output_scale")
)


@dataclass(frozen=True, slots=True)
class Contents:
    """The tensors of some files."""

    #: By name, as the files spell it; that of a matrix is the name it would have in full.
    tensors: Mapping[str, TensorHeader | StoredMatrix]
    #: What the decoder needs.
    names: WeightMap
    #: By name: scales for a KV cache of 8 bits, and what else may be rounded in an attention.
    kv_scales: Mapping[str, TensorHeader] = field(default_factory=dict)


def read_contents(paths: Iterable[Path], spec: DecoderSpec) -> Contents:
    """Return what the files of a decoder hold.

    Raises:
        ModelLoadError: a file is damaged, two have the same tensor, or the config and the tensors
            of a matrix contradict each other.
    """
    headers: dict[str, TensorHeader] = {}
    for path in paths:
        for name, header in read_headers(path).items():
            if name in headers:
                raise ModelLoadError(f"{path}: tensor {name!r} is in another shard already")
            headers[name] = header
    own, names = find_format(spec.raw), stored_names(spec)
    if own is None:
        return Contents(headers, names)
    scales = {name: headers.pop(name) for name in list(headers) if name.endswith(_KV_SCALES)}
    by_module, others = _by_module(headers, own)
    apart = FAMILIES[spec.architecture].names_apart
    if apart is not None:
        names = max((names, apart(spec)), key=lambda each: _num_known(by_module, each, spec))
    return Contents(others | _matrices(by_module, own, names, spec), names, scales)


def _by_module(
    headers: Mapping[str, TensorHeader], own: StoredFormat
) -> tuple[dict[str, dict[str, TensorHeader]], dict[str, TensorHeader | StoredMatrix]]:
    """By module, the tensors that may belong to a matrix, by suffix; and all others by name."""
    by_module: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
    others: dict[str, TensorHeader | StoredMatrix] = {}
    for name, header in headers.items():
        suffix = next((each for each in own.suffixes if name.endswith(each)), None)
        if suffix is None:
            others[name] = header
        else:
            by_module[name.removesuffix(suffix)][suffix] = header
    return by_module, others


def _num_known(modules: Iterable[str], names: WeightMap, spec: DecoderSpec) -> int:
    return sum(own_name(spec, names, module + _DENSE) in names for module in modules)


def _matrices(
    by_module: Mapping[str, dict[str, TensorHeader]],
    own: StoredFormat,
    names: WeightMap,
    spec: DecoderSpec,
) -> dict[str, TensorHeader | StoredMatrix]:
    found: dict[str, TensorHeader | StoredMatrix] = {}
    for module, parts in by_module.items():
        spelled = own_name(spec, names, module + _DENSE)
        is_embedding = spelled in names and names[spelled].part.kind is Kind.EMBEDDING
        both = Module((module, spelled.removesuffix(_DENSE)), is_embedding=is_embedding)
        layout = own.layout(both, parts)
        if layout is None:
            found |= {module + suffix: header for suffix, header in parts.items()}
        else:
            found[module + layout.dense_suffix] = StoredMatrix(module, layout, parts)
    return found
