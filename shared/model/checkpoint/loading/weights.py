"""Loading of sharded safetensors into a model, one tensor at a time, directly into its place."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog
import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint.headers.contents import read_contents
from shared.model.checkpoint.headers.surplus import check_surplus
from shared.model.checkpoint.loading.progress import reported
from shared.model.checkpoint.loading.reading import read_tensors
from shared.model.checkpoint.wrapper import own_name
from shared.model.decoder.causal_lm import CausalLM
from shared.model.families.registry import FAMILIES
from shared.model.linear.fused import FusedLinear
from shared.model.sharding.cut import WHOLE
from shared.model.sharding.model import ShardedCausalLM
from shared.model.sharding.slicing import Slices
from shared.model.weight_map import EMBEDDING, HEAD, Kind, Stored, WeightPart, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.checkpoint.headers.contents import Contents
    from shared.model.checkpoint.loading.reading import OpenMatrix
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.spec.decoder import DecoderSpec

log = structlog.get_logger(__name__)

_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_weights(model: CausalLM, files: CheckpointFiles) -> None:
    """Copy every tensor into the model. Needs memory for one tensor besides the model's own.

    Raises:
        ModelLoadError: a tensor is missing, unknown, doubled or of a wrong shape or dtype, or a
            file is missing or damaged.
    """
    slices = None
    spec = model.spec
    if isinstance(model, ShardedCausalLM):
        spec, slices = model.shards.whole, Slices(model.shards, model.collective)
    contents = read_contents(files.shards, spec)
    names = contents.names
    family = FAMILIES[spec.architecture]
    head, embedding = name_of(names, HEAD), name_of(names, EMBEDDING)
    targets = set(names)
    if model.lm_head is model.embedding:
        targets.remove(head)
    seen: set[str] = set()
    unread: Counter[str] = Counter()
    tied_head: Tensor | None = None
    num_exact = 0
    tensors = read_tensors(contents, files.shards)
    for path, stored_name, found in reported(tensors, len(contents.tensors)):
        name = own_name(spec, names, stored_name)
        if name in seen:
            raise ModelLoadError(f"{path}: tensor {name!r} is in another shard already")
        if name in targets:
            num_exact += fill(model, names[name], found, path, name, slices)
            seen.add(name)
        elif name == head:  # the config says that it is tied
            if not len(model.embedding):
                seen.add(embedding)
                continue
            tied_head = torch.empty_like(model.embedding)
            _copy_head(tied_head, names[name], found, path, name, slices)
        else:
            unread[check_surplus(family, spec, path, name, found.shape)] += 1
    if tied_head is not None:
        _resolve_tie(model, tied_head, seen, embedding)
    missing = targets - seen
    if missing:
        raise files.lacks(missing, len(targets))
    _log_unread(unread, num_exact)


def load_further(
    layer: nn.Module, contents: Contents, decoder: DecoderSpec, files: CheckpointFiles
) -> None:
    """Copy the tensors of a layer behind a decoder's last one into it: see `find_further`.

    Raises:
        ModelLoadError: a tensor is missing, unknown or of a wrong shape or dtype.
    """
    seen = set[str]()
    for path, stored_name, found in read_tensors(contents, files.shards):
        name = own_name(decoder, contents.names, stored_name)
        if name not in contents.names:
            raise ModelLoadError(
                f"{path}: tensor {name!r} is not part of a layer that predicts further tokens of "
                f"{decoder.architecture} as configured"
            )
        fill(layer, contents.names[name], found, path, name)
        seen.add(name)
    if missing := contents.names.keys() - seen:
        raise files.lacks(missing, len(contents.names))


def _log_unread(unread: Mapping[str, int], num_exact: int) -> None:
    if unread:
        log.info("tensors_not_read", **{what.replace(" ", "_"): n for what, n in unread.items()})
    if num_exact:
        log.info("inputs_not_rounded", num=num_exact, of="heads, routers and latent attention")


def fill(
    model: nn.Module,
    stored: Stored,
    found: Tensor | OpenMatrix,
    path: Path,
    name: str,
    slices: Slices | None = None,
) -> int:
    """Copy one tensor of a checkpoint into its parts of a model, or of any module with their paths.

    slices: what a rank reads of it; None: the model is whole. Returns the number of parts whose
    inputs should be rounded, and are not.

    Raises:
        ModelLoadError: its shape, dtype or values are wrong.
    """
    if slices is not None and all(slices.cut(part).is_elsewhere for part in stored.parts):
        return 0
    if not isinstance(found, torch.Tensor):
        return _fill_matrix(model, stored, found.read(name, stored), slices)
    _check_shape(stored.shape, found, path, name)
    pieces = (found,) if stored.num_stacked is None else found.unbind()
    for part, piece in zip(stored.parts, pieces, strict=True):
        cut = WHOLE if slices is None else slices.cut(part)
        if cut.is_elsewhere:
            continue
        owner = model.get_submodule(part.module)
        target = _tensor_in(owner, part)
        if slices is None:
            copy_stored(target, _arranged(piece, stored, target.ndim), path, name)
        elif cut.is_zero:
            target.zero_()
        else:
            own = slices.of_tensor(piece, stored, cut, target.ndim)
            copy_stored(_room(target, own), own, path, name)
        if isinstance(owner, FusedLinear):
            owner.filled(part.index)
    return 0


def fill_slice(model: ShardedCausalLM, name: str, values: Tensor | float) -> None:
    """Give a parameter of a rank, if it has that one, its part of the whole one's values.

    values: a number is that of all.
    """
    module, _, kind = name.rpartition(".")
    part = WeightPart(module, Kind(kind), None)
    slices = Slices(model.shards, model.collective)
    cut = slices.cut(part)
    if cut.is_elsewhere:
        return
    if isinstance(values, float):
        model.get_parameter(name).fill_(values)
        return
    owner = model.get_submodule(module)
    target = _tensor_in(owner, part)
    if cut.is_zero:
        target.zero_()
    else:
        stored = Stored(part, tuple(values.shape))
        own = slices.of_tensor(values, stored, cut, target.ndim)
        _room(target, own).copy_(own)
    if isinstance(owner, FusedLinear):
        owner.filled(None)


def _fill_matrix(model: nn.Module, stored: Stored, matrix: AnyMatrix, slices: Slices | None) -> int:
    """Give a matrix, whose rows are outputs, to its parts of the model. Returns as `fill`."""
    parts, num_exact = stored.parts, 0
    pieces: Iterator[AnyMatrix] = matrix.split(len(parts))
    for part, piece in zip(parts, pieces, strict=True):
        cut = WHOLE if slices is None else slices.cut(part)
        if cut.is_elsewhere:
            continue
        if slices is not None:
            own = slices.of_matrix(piece, stored, cut)
        else:
            own = piece if stored.rows is None else piece.take(stored.rows)
        owner = model.get_submodule(part.module)
        if isinstance(owner, FusedLinear):
            owner.take(part.index, own)
            is_exact = owner.is_dense
        elif isinstance(model, CausalLM) and _keeps_head(model, part, own):
            model.stored_head, is_exact = own, False
        else:
            target = _tensor_in(owner, part)
            own.write(target[: _room_for(target, own.shape[0])])
            is_exact = True
        num_exact += is_exact and own.inputs is not None
    return num_exact


def _room(target: Tensor, rows: Tensor) -> Tensor:
    """The place of a rank's rows; zeros behind them, where it has room for more."""
    return target[: _room_for(target, len(rows))]


def _room_for(target: Tensor, num_rows: int) -> int:
    target[num_rows:].zero_()
    return num_rows


def _keeps_head(model: CausalLM, part: WeightPart, matrix: AnyMatrix) -> bool:
    head = EMBEDDING if model.lm_head is model.embedding else HEAD
    return part == head and model.keeps_head(matrix)


def _arranged(tensor: Tensor, stored: Stored, num_dims: int) -> Tensor:
    """A checkpoint's tensor in the order and the dimensions of its part."""
    if stored.is_transposed:
        tensor = tensor.T
    if tensor.ndim > num_dims:
        tensor = tensor.flatten()
    return tensor if stored.rows is None else tensor[torch.tensor(stored.rows)]


def tensor_of(model: nn.Module, part: WeightPart) -> Tensor:
    """Return a part of a model, or of any module with these paths. A view, if it is fused."""
    return _tensor_in(model.get_submodule(part.module), part)


def _tensor_in(owner: nn.Module, part: WeightPart) -> Tensor:
    if not isinstance(owner, FusedLinear):
        found: Tensor = getattr(owner, part.kind.value)
        return found
    if part.kind is Kind.WEIGHT:
        return owner.part(part.index)[0]
    tensor = owner.bias_part(part.index)
    assert tensor is not None  # it exists according to its description
    return tensor


def _copy_head(
    target: Tensor,
    stored: Stored,
    found: Tensor | OpenMatrix,
    path: Path,
    name: str,
    slices: Slices | None,
) -> None:
    cut = WHOLE if slices is None else slices.cut(stored.part)
    if isinstance(found, torch.Tensor):
        _check_shape(stored.shape, found, path, name)
        own = found if slices is None else slices.of_tensor(found, stored, cut, target.ndim)
        copy_stored(_room(target, own), own, path, name)
    else:
        matrix = found.read(name, stored)
        own_matrix = matrix if slices is None else slices.of_matrix(matrix, stored, cut)
        own_matrix.write(target[: _room_for(target, own_matrix.shape[0])])


def _resolve_tie(model: CausalLM, head: Tensor, seen: set[str], embedding: str) -> None:
    """Handle a stored head although the config says tied; as transformers 5.

    If it differs from the embedding, both are used; without an embedding, it serves as both.
    """
    if model.stored_head is not None:
        model.stored_head.write(model.embedding)
        model.stored_head = None
    if embedding not in seen:
        model.embedding.copy_(head)
        seen.add(embedding)
    elif not torch.equal(head, model.embedding):
        own = head if model.spec.ends else head.new_empty(0, head.shape[1])
        model.lm_head = torch.nn.Parameter(own, requires_grad=False)


def copy_stored(target: Tensor, stored: Tensor, path: Path, name: str) -> None:
    """Copy one tensor into its place. Raises ModelLoadError: its shape or dtype is wrong."""
    _check_shape(tuple(target.shape), stored, path, name)
    if stored.dtype not in _STORED_DTYPES:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has dtype {stored.dtype}; supported: "
            f"{', '.join(map(str, _STORED_DTYPES))}"
        )
    target.copy_(stored)


def _check_shape(expected: tuple[int, ...], stored: Tensor, path: Path, name: str) -> None:
    if tuple(stored.shape) != expected:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has shape {list(stored.shape)}, "
            f"the config asks for {list(expected)}"
        )
