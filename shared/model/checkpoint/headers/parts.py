"""The tensors of some files, and which of them are together a matrix of few bits.

Reads headers only, and imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.tensor_files import read_headers
from shared.model.checkpoint.matrices.layout import StoredMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module, StoredFormat
    from shared.model.checkpoint.matrices.layout import Layout

#: What the name of most matrices has behind that of their module.
DENSE = ".weight"
#: Of queries, keys, values and weights of attention, whichever library wrote them.
_KV_SCALES = tuple(
    f".{what}"
    for what in ("k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale", "output_scale")
)


def all_headers(paths: Iterable[Path]) -> dict[str, TensorHeader]:
    """Return what some files hold, by name.

    Raises:
        ModelLoadError: a file is damaged, or two have the same tensor.
    """
    headers: dict[str, TensorHeader] = {}
    for path in paths:
        for name, header in read_headers(path).items():
            if name in headers:
                raise ModelLoadError(f"{path}: tensor {name!r} is in another shard already")
            headers[name] = header
    return headers


@dataclass(frozen=True, slots=True)
class Parts:
    """Tensors of a quantised checkpoint."""

    #: Those that may belong to a matrix, by suffix, by module.
    by_module: Mapping[str, Mapping[str, TensorHeader]]
    #: All others, by name.
    others: Mapping[str, TensorHeader]
    #: They are in neither of them.
    kv_scales: Mapping[str, TensorHeader]

    @classmethod
    def of(cls, headers: Mapping[str, TensorHeader], own: StoredFormat) -> Parts:
        """Sort the tensors by their names."""
        by_module: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
        others: dict[str, TensorHeader] = {}
        kv_scales: dict[str, TensorHeader] = {}
        for name, header in headers.items():
            suffix = next((each for each in own.suffixes if name.endswith(each)), None)
            if name.endswith(_KV_SCALES):
                kv_scales[name] = header
            elif suffix is None:
                others[name] = header
            else:
                by_module[name.removesuffix(suffix)][suffix] = header
        return cls(by_module, others, kv_scales)

    def tensors(
        self, own: StoredFormat, module_of: Callable[[str], Module]
    ) -> dict[str, TensorHeader | StoredMatrix]:
        """Return all tensors by name; a matrix by the name that it would have in full.

        module_of: of a module as the files spell it.

        Raises:
            ModelLoadError: the config and the tensors of a matrix contradict each other.
        """
        found: dict[str, TensorHeader | StoredMatrix] = dict(self.others)
        for name, parts in self.by_module.items():
            layout = _layout(own, module_of(name), parts)
            if layout is None:
                found |= {name + suffix: header for suffix, header in parts.items()}
            else:
                found[name + layout.dense_suffix] = StoredMatrix(name, layout, parts)
        return found


def _layout(own: StoredFormat, module: Module, parts: Mapping[str, TensorHeader]) -> Layout | None:
    try:
        return own.layout(module, parts)
    except ModelLoadError as error:
        path = next(iter(parts.values())).path
        raise ModelLoadError(f"{path}: {error}") from error
