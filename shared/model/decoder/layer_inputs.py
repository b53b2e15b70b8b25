"""Inputs that layers have besides the residual stream: rows of a token, one for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding

from shared.model.decoder.layers import activate, make_norm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.base import LinearMethod
    from shared.model.spec.decoder import DecoderSpec, LayerInputsSpec


def make_layer_inputs(
    spec: DecoderSpec, *, dtype: torch.dtype, implementation: str, method: LinearMethod
) -> LayerInputs | None:
    """Return what makes the inputs that a description asks for; None if layers have none.

    implementation: see `LayerInputs`.
    """
    if spec.layer_inputs is None:
        return None
    return LayerInputs(
        spec, spec.layer_inputs, dtype=dtype, implementation=implementation, method=method
    )


class LayerInputs(nn.Module):
    """Makes the inputs of all layers from tokens and their embeddings."""

    def __init__(
        self,
        spec: DecoderSpec,
        own: LayerInputsSpec,
        *,
        dtype: torch.dtype,
        implementation: str = "torch",
        method: LinearMethod = DENSE,
    ) -> None:
        """implementation: of the norm, `torch` or `triton`."""
        super().__init__()
        self.spec = own
        self.num_layers = spec.num_layers
        size = spec.num_layers * own.size
        self.embedding = nn.Parameter(
            torch.empty(own.num_rows, size, dtype=dtype), requires_grad=False
        )
        self.projection = FusedLinear(
            in_size=spec.hidden_size, out_sizes=(size,), bias=False, dtype=dtype, method=method
        )
        self.norm = make_norm(spec.norm, size=own.size, dtype=dtype, implementation=implementation)
        self._projection_factor = spec.hidden_size**-0.5

    def forward(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """Return [num_tokens, num_layers, size].

        token_ids: int64 [num_tokens]; embedded: what enters the first layer, [num_tokens, hidden].
        """
        shape = (-1, self.num_layers, self.spec.size)
        projected = self.projection(embedded)[0] * self._projection_factor
        normed: Tensor = self.norm(projected.view(shape))
        rows = embedding(token_ids, self.embedding)
        # The factor is rounded to the weights' dtype, as in transformers.
        rows = rows * rows.new_full((), self.spec.size**0.5)
        return (normed + rows.view(shape)) * 2**-0.5


class InputGate(nn.Module):
    """Makes what a layer's input adds to the residual stream."""

    def __init__(
        self,
        spec: DecoderSpec,
        own: LayerInputsSpec,
        *,
        dtype: torch.dtype,
        implementation: str = "torch",
        method: LinearMethod = DENSE,
    ) -> None:
        """implementation: of the norm, `torch` or `triton`."""
        super().__init__()
        self._activation = own.activation
        hidden = spec.hidden_size
        self.gate, self.up = (
            FusedLinear(
                in_size=in_size, out_sizes=(out_size,), bias=False, dtype=dtype, method=method
            )
            for in_size, out_size in ((hidden, own.size), (own.size, hidden))
        )
        self.norm = make_norm(spec.norm, size=hidden, dtype=dtype, implementation=implementation)

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        """Map the stream [num_tokens, hidden] to the same shape; row: [num_tokens, size]."""
        gated = activate(self._activation, self.gate(x)[0]) * row
        out: Tensor = self.norm(self.up(gated)[0])
        return out
