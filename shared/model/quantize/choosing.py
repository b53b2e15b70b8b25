"""Chooses what is written of each tensor: which linears get which scheme, by patterns."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import torch

from shared.errors import ConfigError
from shared.model.attention.registry import get_backend
from shared.model.checkpoint.files.tensor_files import TensorHeader
from shared.model.checkpoint.patterns import matches
from shared.model.checkpoint.wrapper import own_name
from shared.model.decoder.decoder_layer import DecoderLayer
from shared.model.families.registry import FAMILIES
from shared.model.linear.base import MadeOfDense
from shared.model.linear.fused import FusedLinear
from shared.model.quantize.plan import Matrix, Piece, Source
from shared.model.weight_map import LAYERS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shared.model.checkpoint.headers.contents import Contents
    from shared.model.linear.base import Product
    from shared.model.quantize.output import Choices
    from shared.model.quantize.scheme import Scheme
    from shared.model.spec.decoder import DecoderSpec, LayerSpec
    from shared.model.weight_map import Stored, WeightMap

_WEIGHT = ".weight"


def choose_pieces(spec: DecoderSpec, contents: Contents, choices: Choices) -> list[Source]:
    """Return all tensors of a checkpoint that is not quantised, and what is written of each.

    A stack of experts is taken apart if a format can name its parts: formats have no 3-D matrices.

    Raises:
        ConfigError: a scheme does not fit a linear, or a pattern names none; says what to do.
    """
    chooser = _Chooser(spec, contents, choices)
    apart = FAMILIES[spec.architecture].names_apart
    found = chooser.take(contents.names if apart is None else apart(spec))
    is_apart = any(piece.matrix and piece.expert is not None for piece in _pieces(found))
    if apart is not None and not is_apart:
        found = chooser.take(contents.names)
    _refuse_stacks(found)
    chooser.check_patterns()
    return found


def _refuse_stacks(found: list[Source]) -> None:
    stacks = [
        source
        for source in found
        if source.stored is not None and source.stored.num_stacked is not None
        if any(each.matrix and each.expert is None for each in source.pieces)
    ]
    if stacks:
        # Of all layers: with those of one, the next one would be refused.
        patterns = dict.fromkeys(
            module_of(each.name).replace(f".{each.layer}.", ".*.") for each in stacks
        )
        options = " ".join(f"--exclude '{each}'" for each in patterns)
        raise ConfigError(
            f"{stacks[0].name}: these experts are one tensor, and no format names its parts; "
            f"leave them as they are: {options}"
        )


def module_of(name: str) -> str:
    """Return the name of a weight's module."""
    return name.removesuffix(_WEIGHT)


class _Unfilled(MadeOfDense):
    """Marks the linears that a method may narrow."""

    def finish(self, linear: FusedLinear) -> Product | None:
        """See `LinearMethod.finish`."""
        return None


class _Chooser:
    def __init__(self, spec: DecoderSpec, contents: Contents, choices: Choices) -> None:
        self._spec = spec
        self._contents = contents
        self._choices = choices
        self._unused = {*choices.excluded, *(pattern for pattern, _ in choices.others)}
        #: Of each kind of layer: the paths of its linears that may be narrowed.
        self._narrow: list[tuple[LayerSpec, frozenset[str]]] = []
        self._example = ""

    def take(self, wanted: WeightMap) -> list[Source]:
        """Return all tensors as pieces with names in `wanted`, but for those that are not read."""
        known = self._contents.names
        by_part: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name, stored in wanted.items():
            by_part[stored.part.module, stored.part.kind.value].append(name)
        found = []
        for name, header in self._contents.tensors.items():
            assert isinstance(header, TensorHeader)  # the checkpoint is not quantised
            own = own_name(self._spec, known, name)
            tensor = known.get(own)
            if tensor is None:
                pieces = [Piece(name, header.shape)]
            elif own in wanted:
                pieces = [self._with_scheme(Piece(name, header.shape), own, tensor)]
            else:
                pieces = list(self._of_stack(name, own, tensor, wanted, by_part))
            found.append(Source(name, header, tensor, tuple(pieces)))
        return found

    def check_patterns(self) -> None:
        """Refuse patterns that name no linear.

        Raises:
            ConfigError: one does not.
        """
        for pattern in sorted(self._unused):
            raise ConfigError(
                f"{pattern!r} names no linear that can be quantised; names are like {self._example}"
            )

    def _of_stack(
        self,
        name: str,
        own: str,
        stack: Stored,
        wanted: WeightMap,
        by_part: Mapping[tuple[str, str], list[str]],
    ) -> Iterator[Piece]:
        before, replaced = _beginnings(name, own)
        for number, part in enumerate(stack.parts):
            first = 0
            for each in by_part[part.module, part.kind.value]:
                shape = wanted[each].shape
                spelled = before + each.removeprefix(replaced)
                piece = Piece(spelled, shape, expert=number, first_row=first)
                yield self._with_scheme(piece, each, wanted[each])
                first += shape[0]

    def _with_scheme(self, piece: Piece, own: str, stored: Stored) -> Piece:
        size, part = stored.matrix_size, stored.part
        if size is None or part.kind is not Kind.WEIGHT or not self._is_narrow(stored):
            return piece
        module = module_of(piece.name)
        self._example = self._example or module
        scheme = self._scheme_of(module, module_of(own))
        if scheme is None:
            return piece
        rows, columns = size
        why = scheme.why_not(columns)
        if why is not None:
            other = "choose another --group-size, or " if scheme.has_free_group else ""
            raise ConfigError(f"{module}, {scheme.name}: {why}; {other}leave it out: --exclude")
        return replace(piece, matrix=Matrix(module, part, scheme, rows, columns))

    def _scheme_of(self, *names: str) -> Scheme | None:
        choices = self._choices
        hits = {each for each in choices.excluded if matches(each, names, "--exclude")}
        found = {each: own for each, own in choices.others if matches(each, names, "--layer")}
        self._unused -= hits | found.keys()
        if hits:
            return None
        if len({scheme.name for scheme in found.values()}) > 1:
            raise ConfigError(f"{names[0]}: {' and '.join(found)} of --layer both name it")
        return next(iter(found.values()), choices.usual)

    def _is_narrow(self, stored: Stored) -> bool:
        """Whether a weight is of a linear that a method may narrow: no router, no head."""
        layer = stored.part.layer
        if layer is None:
            return False
        path = stored.part.module.format(0).removeprefix(f"{LAYERS}.{layer}.")
        return path in self._paths(layer)

    def _paths(self, layer: int) -> frozenset[str]:
        own = self._spec.layers[layer]
        for known, paths in self._narrow:
            if known == own:
                return paths
        paths = _narrow_paths(self._spec, layer)
        self._narrow.append((own, paths))
        return paths


def _narrow_paths(spec: DecoderSpec, number: int) -> frozenset[str]:
    with torch.device("meta"):
        layer = DecoderLayer(
            spec=spec,
            layer=number,
            backend=get_backend("torch"),
            dtype=torch.float32,
            method=_Unfilled(),
        )
    return frozenset(
        path
        for path, module in layer.named_modules()
        if isinstance(module, FusedLinear) and not module.is_dense
    )


def _pieces(sources: list[Source]) -> Iterator[Piece]:
    for source in sources:
        yield from source.pieces


def _beginnings(stored: str, own: str) -> tuple[str, str]:
    """What a file's name and the decoder's name of a tensor have before what both end with."""
    pairs = zip(reversed(stored), reversed(own), strict=False)
    size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return stored[: len(stored) - size], own[: len(own) - size]
