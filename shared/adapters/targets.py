"""The modules of a base that an adapter may name, by their names on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.model.adapted.paths import takes_adapter, why_not
from shared.model.checkpoint.wrapper import own_name
from shared.model.families.registry import FAMILIES, stored_names
from shared.model.weight_map import EMBEDDING, HEAD, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import Stored, WeightMap, WeightPart

_WEIGHT = ".weight"
_TO_LAYER = re.compile(r"^.*?\.\d+\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A module: a linear of the base, or a range of the outputs of one."""

    #: Path of the linear in the model.
    path: str
    #: Number of the first output there.
    first: int
    in_size: int
    out_size: int
    #: By output of the linear: the module's output; None: the same.
    rows: Sequence[int] | None = None
    #: What the module is, if it takes no adapter; None: it takes one.
    why_not: str | None = None


class AdapterBase(Protocol):
    """What is asked of a model before an adapter of it is read."""

    @property
    def spec(self) -> DecoderSpec:
        """Its description."""
        ...

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`."""
        ...


class BaseModules:
    """The modules of one base."""

    def __init__(self, model: AdapterBase) -> None:
        """Look a model's modules up. It is not kept."""
        self._spec = model.spec
        self._names: WeightMap = {}
        #: Modules that transformers has and nothing reads: keys and values that layers share.
        self.unread: AbstractSet[str] = frozenset()
        if model.spec.architecture in FAMILIES and _is_of_family(model.adapter_linears):
            self._names = stored_names(model.spec)
            self.by_name = _of_family(self._names)
            self.unread = _unread(model.spec) - self.by_name.keys()
        else:  # linears have the names of transformers' modules
            self.by_name = {
                name: Target(path=name, first=0, in_size=in_size, out_size=out_size)
                for name, (in_size, out_size) in model.adapter_linears.items()
            }

    @property
    def taking(self) -> str:
        """The names, in their layers, of those that take adapters, for an error."""
        names = (name for name, each in self.by_name.items() if each.why_not is None)
        return ", ".join(sorted({_TO_LAYER.sub("", name) for name in names}))

    def known_name(self, name: str) -> str:
        """Return the name in `by_name` of a module that a file names; an unknown one as it is."""
        if name in self.by_name or not self._names:
            return name
        return own_name(self._spec, self._names, f"{name}{_WEIGHT}").removesuffix(_WEIGHT)


def _is_of_family(linears: Mapping[str, tuple[int, int]]) -> bool:
    return all(takes_adapter(path) for path in linears)


def _unread(spec: DecoderSpec) -> set[str]:
    if not spec.shares_kv:
        return set()
    return {name.removesuffix(_WEIGHT) for name in stored_names(spec.without_sharing())}


def _of_family(names: WeightMap) -> dict[str, Target]:
    firsts = _first_outputs(names)
    return {
        name.removesuffix(_WEIGHT): _target(stored, firsts[stored.part])
        for name, stored in names.items()
        if name.endswith(_WEIGHT) and stored.part in firsts
    }


def _first_outputs(names: WeightMap) -> dict[WeightPart, int]:
    """Return, by matrix, the number of its first output in its linear."""
    firsts: dict[WeightPart, int] = {}
    ends: dict[str, int] = {}
    parts = [stored for stored in names.values() if _is_matrix(stored)]
    for stored in sorted(parts, key=lambda each: each.part.index or 0):
        assert stored.matrix_size is not None
        first = ends.get(stored.part.module, 0)
        firsts[stored.part] = first
        ends[stored.part.module] = first + stored.matrix_size[0]
    return firsts


def _is_matrix(stored: Stored) -> bool:
    of_kind = stored.part.kind in (Kind.WEIGHT, Kind.EMBEDDING, Kind.POSITIONS, Kind.HEAD)
    return of_kind and stored.matrix_size is not None


def _target(stored: Stored, first: int) -> Target:
    assert stored.matrix_size is not None
    out_size, in_size = stored.matrix_size
    path = stored.part.module
    reason: str | None = None
    if stored.part in (EMBEDDING, HEAD):
        reason = "the embedding" if stored.part == EMBEDDING else "the output head"
    elif not takes_adapter(path):
        reason = why_not(path)
    return Target(
        path=path, first=first, in_size=in_size, out_size=out_size, rows=stored.rows, why_not=reason
    )
