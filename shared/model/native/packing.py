"""A model's weights in the native kernels' order; each is packed as soon as it is complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.native.library import Kind
from shared.errors import InternalError
from shared.model.layers import GatedMLP, RMSNorm
from shared.model.native.program import PackedLayer
from shared.model.rope_table import rotation_tables

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.causal_lm import CausalLM, DecoderLayer
    from shared.model.layers import Norm
    from shared.model.linear.fused import FusedLinear
    from shared.model.native.threads import LibraryThreads

_STORED = {torch.float32: Kind.FLOAT32, torch.bfloat16: Kind.BFLOAT16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """The packed weights of a model, for the library."""

    layers: tuple[PackedLayer, ...]
    norm: int
    head: int
    #: The embedding's rows; None if they are the head's columns.
    embedding: int | None
    embedding_kind: Kind
    cos_sin: int


class PackedWeight:
    """A `Product` that only the native decoder computes."""

    def __init__(self, matrix: int) -> None:
        #: The library's handle.
        self.matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`. Always raises InternalError."""
        raise InternalError("a packed weight is computed by the native decoder")


class Packing:
    """The packed weights of one model, and the `LinearMethod` that makes them."""

    def __init__(self, threads: LibraryThreads, kind: Kind) -> None:
        """Pack weights; `kind` is the format of linears."""
        self.threads = threads
        self.kind = kind
        self._library = threads.library
        self._matrices: list[int] = []
        #: Arrays that the kernels read directly.
        self._kept: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Memory of all packed weights in bytes."""
        kept = sum(tensor.nbytes for tensor in self._kept)
        return kept + sum(int(self._library.baton_matrix_bytes(m)) for m in self._matrices)

    def finish(self, linear: FusedLinear) -> PackedWeight:
        """See `LinearMethod.finish`."""
        return PackedWeight(self._matrix(linear.weight, linear.bias, paired=linear.is_gated))

    def pack(self, model: CausalLM) -> PackedModel:
        """Return all weights of a model loaded with this method; it is empty afterwards."""
        layers = tuple(self._pack_layer(layer) for layer in model.decoder_layers)
        tied = model.lm_head is model.embedding
        head = self._matrix(model.lm_head, None)
        embedding = None if tied else self._keep(model.embedding.detach())
        embedding_kind = _STORED[model.embedding.dtype]
        model.lm_head = model.embedding = _nothing()
        spec = model.spec
        (table,) = rotation_tables(spec, torch.float32)
        return PackedModel(
            layers=layers,
            norm=self._vector(model.norm),
            head=head,
            embedding=embedding,
            embedding_kind=embedding_kind,
            cos_sin=self._keep(table),
        )

    def __del__(self) -> None:
        """Free the memory: the decoder that used the weights is gone."""
        for matrix in self._matrices:
            self._library.baton_matrix_delete(matrix)

    def _pack_layer(self, layer: DecoderLayer) -> PackedLayer:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, GatedMLP)  # others are refused: see `why_not_native`
        return PackedLayer(
            attention_norm=self._vector(layer.attention_norm),
            qkv=self._linear(attention.qkv),
            q_norm=None if attention.q_norm is None else self._vector(attention.q_norm),
            k_norm=None if attention.k_norm is None else self._vector(attention.k_norm),
            output=self._linear(attention.output),
            mlp_norm=self._vector(layer.mlp_norm),
            gate_up=self._linear(mlp.gate_up),
            down=self._linear(mlp.down),
        )

    def _linear(self, linear: FusedLinear) -> int:
        assert isinstance(linear.product, PackedWeight)  # the whole model was loaded
        return linear.product.matrix

    def _matrix(self, weight: Tensor, bias: Tensor | None, *, paired: bool = False) -> int:
        columns, inner = weight.shape
        weight = weight.detach().contiguous()
        values = None if bias is None else bias.detach().float().contiguous()
        matrix = self._library.baton_matrix_new(
            self.threads.pool,
            self.kind,
            weight.data_ptr(),
            _STORED[weight.dtype],
            columns,
            inner,
            None if values is None else values.data_ptr(),
            paired,
        )
        if not matrix:
            raise MemoryError(f"no memory for a packed weight of {columns} x {inner}")
        self._matrices.append(matrix)
        return int(matrix)

    def _vector(self, norm: Norm) -> int:
        assert isinstance(norm, RMSNorm)  # others are refused: see `why_not_native`
        return self._keep(norm.weight.detach().float())

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


def _nothing() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(0), requires_grad=False)
