"""The experts of transformers' modules, replaced by ours where their inputs are rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from shared.model.linear.fused import FusedLinear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from shared.model.generic.entries import Entries
    from shared.model.linear.base import LinearMethod
    from shared.model.matrix.quantized import QuantizedMatrix


class OwnExperts(nn.Module):
    """The experts of a layer, in the format of a method."""

    def __init__(self, module: nn.Module, firsts: list[nn.Module], downs: list[nn.Module]) -> None:
        """Take the linears of all experts; the module keeps what it has between and behind them."""
        super().__init__()
        self._firsts, self._downs = nn.ModuleList(firsts), nn.ModuleList(downs)
        self._module: Any = module

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Map [num_tokens, hidden] to the weighted sum of each token's experts."""
        total = torch.zeros_like(hidden_states)
        for number in top_k_index.unique().tolist():
            token, place = (top_k_index == number).nonzero(as_tuple=True)
            inner = torch.cat(self._firsts[number](hidden_states[token]), dim=-1)
            out: Tensor = self._downs[number](self._activated(inner))[0]
            if self._module.has_post_expert_norm:
                out = self._module.post_expert_norm(out)
            weighted = out * top_k_weights[token, place, None]
            total.index_add_(0, token, weighted.to(total.dtype))
        return total

    def _activated(self, inner: Tensor) -> Tensor:
        own = self._module
        activated: Tensor = own._apply_gate(inner) if own.has_gate else own.act_fn(inner)
        return activated


def give_to_experts(module: nn.Module, entries: Entries, method: LinearMethod) -> None:
    """Give experts the matrices that their weights were made of, if inputs of some are rounded."""
    for owner, name, experts in list(_experts_of(module)):
        first = experts.gate_up_proj if experts.has_gate else experts.up_proj
        firsts = _linears(first, 2 if experts.has_gate else 1, entries, method, experts)
        downs = _linears(experts.down_proj, 1, entries, method, experts)
        if firsts is None or downs is None:
            continue
        for own in ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj"):
            experts.register_parameter(own, None)
        setattr(owner, name, OwnExperts(experts, firsts, downs))


def _experts_of(module: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield the experts whose gates stand before their ups: owner, name there, and themselves."""
    for owner in module.modules():
        for name, child in owner.named_children():
            own: Any = child
            if hasattr(own, "is_concatenated") and own.is_concatenated and not own.has_bias:
                yield owner, name, own


def _linears(
    weights: Tensor, num_parts: int, entries: Entries, method: LinearMethod, experts: Any
) -> list[nn.Module] | None:
    """A linear of each expert; None: inputs of none are rounded."""
    own = weights.transpose(1, 2) if experts.is_transposed else weights
    parts = [_parts(rows, num_parts, entries) for rows in own]
    found = [matrix for each in parts for _, _, matrix in each]
    if not any(matrix is not None and matrix.inputs is not None for matrix in found):
        return None
    return [_linear(each, own.shape, num_parts, method) for each in parts]


_Part = tuple["int | None", "Tensor", "QuantizedMatrix | None"]


def _parts(rows: Tensor, num: int, entries: Entries) -> list[_Part]:
    """The matrix that an expert's rows are, or that each part of them is."""
    whole = entries.take_equal(rows)
    if whole is not None:
        return [(None, rows, whole)]
    return [(at, part, entries.take_equal(part)) for at, part in enumerate(rows.chunk(num))]


def _linear(
    parts: list[_Part], shape: tuple[int, ...], num_parts: int, method: LinearMethod
) -> nn.Module:
    linear = FusedLinear(
        in_size=shape[2],
        out_sizes=(shape[1] // num_parts,) * num_parts,
        bias=False,
        dtype=parts[0][1].dtype,
        method=method,
    )
    for index, rows, matrix in parts:
        if matrix is not None:
            linear.take(index, matrix)
        else:
            linear.part(index)[0].copy_(rows)
            linear.filled(index)
    return linear
