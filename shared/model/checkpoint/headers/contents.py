"""What a checkpoint's files hold, as a decoder needs it: tensors, and matrices of few bits.

Reads headers only, and imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.parts import DENSE, Parts, all_headers
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import FAMILIES, stored_names
from shared.model.weight_map import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.matrices.layout import StoredMatrix
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap


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
    headers, names = all_headers(paths), [stored_names(spec)]
    if (apart := FAMILIES[spec.architecture].names_apart) is not None:
        names.append(apart(spec))
    return _arranged(headers, spec, names)


def read_further(paths: Iterable[Path], spec: DecoderSpec, names: WeightMap) -> Contents:
    """Return those tensors that `names` has: of a layer behind a decoder's last one.

    Raises as `read_contents`.
    """
    modules = {name.removesuffix(DENSE) for name in names}
    headers = {
        stored: header
        for stored, header in all_headers(paths).items()
        if any(module in modules for module in _modules(own_name(spec, names, stored)))
    }
    return _arranged(headers, spec, [names])


def _modules(name: str) -> Iterator[str]:
    """Yield a tensor's name, and those of all modules that it may be of."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _arranged(
    headers: Mapping[str, TensorHeader], spec: DecoderSpec, spellings: Sequence[WeightMap]
) -> Contents:
    """spellings: what the decoder needs, in several ways; quantised files choose one of them."""
    own, names = find_format(spec.raw), spellings[0]
    if own is None:
        return Contents(headers, names)
    parts = Parts.of(headers, own)
    if len(spellings) > 1:
        names = max(spellings, key=lambda each: _num_known(parts.by_module, each, spec))
    tensors = parts.tensors(own, lambda spelled: _module(spelled, names, spec))
    return Contents(tensors, names, parts.kv_scales)


def _num_known(modules: Iterable[str], names: WeightMap, spec: DecoderSpec) -> int:
    return sum(own_name(spec, names, module + DENSE) in names for module in modules)


def _module(spelled: str, names: WeightMap, spec: DecoderSpec) -> Module:
    own = own_name(spec, names, spelled + DENSE)
    is_embedding = own in names and names[own].part.kind is Kind.EMBEDDING
    return Module((spelled, own.removesuffix(DENSE)), is_embedding=is_embedding)
