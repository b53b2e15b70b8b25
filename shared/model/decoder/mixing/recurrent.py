"""Mixers with states: short convolutions, the gated delta rule, Mamba-2.

States are float32. The tokens of a sequence change its state one after the other, by the same
operations in each step, so that a state does not depend on how its tokens were divided into steps:
`kernels/recurrence/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from kernels.recurrence.conv import causal_conv
from kernels.recurrence.delta import DeltaShape, gated_delta
from kernels.recurrence.mamba import MambaShape, mamba_scan
from kernels.recurrence.states import StateBatch
from shared.model.linear.fused import FusedLinear
from shared.model.spec.mixers import DeltaSpec, GatedNorm, MambaSpec, ShortConvSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata
    from shared.model.linear.base import LinearMethod
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import RecurrentSpec


class Values(nn.Module):
    """A weight, and a bias if it has one, that no product uses."""

    def __init__(
        self, *shape: int, bias: int | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias is not None:
            self.bias = nn.Parameter(torch.empty(bias, dtype=dtype), requires_grad=False)


class RecurrentMixer(nn.Module):
    """A mixer with a state of constant size for each sequence."""

    conv: Values
    #: The last product.
    out: FusedLinear

    def __init__(
        self, *, spec: DecoderSpec, layer: int, own: RecurrentSpec, implementation: str
    ) -> None:
        """implementation: of the kernels, `torch` or `triton`."""
        super().__init__()
        #: Its group of layers, and its place there.
        self.group, self.place = spec.kv_place(layer)
        #: Nothing is rotated.
        self.rope: int | None = None
        #: PyTorch follows the tokens on the host.
        self.is_recordable = implementation == "triton"
        self._implementation = implementation
        self._number = self.group - spec.num_token_groups
        #: Numbers of a state that the convolution keeps, in front of the others.
        self._conv_size = (own.kernel_size - 1) * own.conv_width

    def forward(
        self, x: Tensor, _positions: Tensor, states: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """[num_tokens, hidden] to the same; reads and writes the sequences' states.

        states: float32 [num_blocks, num_layers, state_size].
        """
        assert metadata.states is not None  # the batch of a model with states
        batch = StateBatch(
            states[:, self.place],
            metadata.states[self._number],
            metadata.query_start_loc,
            metadata.query_lens_list,
        )
        return self._mix(x, batch)

    def _mix(self, x: Tensor, batch: StateBatch) -> Tensor:
        """Return the result [num_tokens, hidden], and bring the states up to date."""
        raise NotImplementedError

    def _convolve(self, rows: Tensor, batch: StateBatch, *, activate: bool) -> Tensor:
        """Return float32 rows [num_tokens, channels]; `activate`: silu of them."""
        conv = self.conv
        how = self._implementation
        return causal_conv(
            rows, conv.weight, conv.bias, batch, activate=activate, implementation=how
        )


class ShortConv(RecurrentMixer):
    """See `ShortConvSpec`."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        own: ShortConvSpec,
        dtype: torch.dtype,
        method: LinearMethod,
        implementation: str,
    ) -> None:
        super().__init__(spec=spec, layer=layer, own=own, implementation=implementation)
        width, bias = own.width, own.bias
        self.inputs = FusedLinear(
            in_size=spec.hidden_size, out_sizes=(width,) * 3, bias=bias, dtype=dtype, method=method
        )
        self.conv = Values(width, 1, own.kernel_size, bias=width if bias else None, dtype=dtype)
        self.out = FusedLinear(
            in_size=width, out_sizes=(spec.hidden_size,), bias=bias, dtype=dtype, method=method
        )

    def _mix(self, x: Tensor, batch: StateBatch) -> Tensor:
        b, c, value = self.inputs(x)
        mixed = self._convolve(b * value, batch, activate=False)
        out: Tensor = self.out(c * mixed.to(x.dtype))[0]
        return out


class GatedDelta(RecurrentMixer):
    """See `DeltaSpec`."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        own: DeltaSpec,
        dtype: torch.dtype,
        method: LinearMethod,
        implementation: str,
    ) -> None:
        super().__init__(spec=spec, layer=layer, own=own, implementation=implementation)
        self.own, self._eps = own, spec.norm.eps
        self.inputs = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.conv_width, own.value_size),
            bias=False,
            dtype=dtype,
            method=method,
        )
        self.rates = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.num_heads, own.num_heads),
            bias=False,
            dtype=dtype,
            method=method,
        )
        self.conv = Values(own.conv_width, 1, own.kernel_size, dtype=dtype)
        #: By head: the logarithm of what a step is multiplied with, and what is added to the step.
        self.decay = Values(own.num_heads, bias=own.num_heads)
        self.norm = Values(own.value_dim, dtype=dtype)
        self._shape = DeltaShape(
            own.num_key_heads, own.num_heads, own.key_dim, own.value_dim, self._conv_size
        )
        self.out = FusedLinear(
            in_size=own.value_size,
            out_sizes=(spec.hidden_size,),
            bias=False,
            dtype=dtype,
            method=method,
        )

    def _mix(self, x: Tensor, batch: StateBatch) -> Tensor:
        own = self.own
        rows, gate = self.inputs(x)
        rates, steps = self.rates(x)
        assert self.decay.bias is not None
        steps = functional.softplus(steps.float() + self.decay.bias)
        decays = (-self.decay.weight.exp() * steps).exp()
        seen = self._convolve(rows, batch, activate=True)
        rates = rates.float().sigmoid()
        how = self._implementation
        mixed = gated_delta(seen, decays, rates, self._shape, batch, implementation=how)
        mixed = _normalise(mixed, self._eps).to(x.dtype) * self.norm.weight
        gate = functional.silu(gate.float()).unflatten(-1, (own.num_heads, -1))
        out: Tensor = self.out((mixed * gate).to(x.dtype).flatten(-2))[0]
        return out


class Mamba(RecurrentMixer):
    """See `MambaSpec`."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        own: MambaSpec,
        dtype: torch.dtype,
        method: LinearMethod,
        implementation: str,
    ) -> None:
        super().__init__(spec=spec, layer=layer, own=own, implementation=implementation)
        self.own, self._eps = own, spec.norm.eps
        width = own.conv_width
        self.inputs = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.inner_size, width, own.num_heads),
            bias=own.bias,
            dtype=dtype,
            method=method,
        )
        conv_bias = width if own.conv_bias else None
        self.conv = Values(width, 1, own.kernel_size, bias=conv_bias, dtype=dtype)
        #: See `GatedDelta`.
        self.decay = Values(own.num_heads, bias=own.num_heads)
        self.skip = Values(own.num_heads)
        self._shape = MambaShape(
            own.num_heads, own.head_dim, own.num_groups, own.state_dim, self._conv_size
        )
        self.norm: Values | None = None
        if own.norm is not GatedNorm.NONE:
            self.norm = Values(own.inner_size, dtype=dtype)
        #: Of float32 rows [num_tokens, num_groups, size], and an epsilon.
        self.normalise: Callable[[Tensor, float], Tensor] = _normalise
        #: By column of `inputs`, but for the gates and steps: those of the convolution.
        self._factors: Tensor | None = None
        if own.column_factors is not None:
            first, end = own.inner_size, own.inner_size + width
            factors = torch.tensor(own.column_factors[first:end], dtype=torch.float32)
            self._factors = factors.to(self.decay.weight.device)
        self.out = FusedLinear(
            in_size=own.inner_size,
            out_sizes=(spec.hidden_size,),
            bias=own.bias,
            dtype=dtype,
            method=method,
        )

    def _mix(self, x: Tensor, batch: StateBatch) -> Tensor:
        own = self.own
        gate, rows, steps = self._scaled(*self.inputs(x))
        assert self.decay.bias is not None
        steps = functional.softplus(steps.float() + self.decay.bias)
        steps = steps.clamp(own.min_step, own.max_step)
        decays = (-self.decay.weight.exp() * steps).exp()
        seen = self._convolve(rows, batch, activate=True)
        skip, how = self.skip.weight, self._implementation
        mixed = mamba_scan(seen, decays, steps, skip, self._shape, batch, implementation=how)
        rows, gate = mixed.flatten(-2), functional.silu(gate.float())
        if own.norm is not GatedNorm.BEFORE_GATE:
            rows = rows * gate
        if self.norm is not None:
            rows = self.normalise(rows.unflatten(-1, (own.num_groups, -1)), self._eps).flatten(-2)
            rows = rows.to(x.dtype) * self.norm.weight
        if own.norm is GatedNorm.BEFORE_GATE:
            rows = rows * gate
        out: Tensor = self.out(rows.to(x.dtype))[0]
        return out

    def _scaled(self, gate: Tensor, rows: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `MambaSpec.factors`."""
        own = self.own.factors
        if own is None or self._factors is None:
            return gate, rows, steps
        return gate * own.gate, (rows * self._factors).to(rows.dtype), steps * own.step


def make_recurrent(
    *, spec: DecoderSpec, layer: int, dtype: torch.dtype, method: LinearMethod, implementation: str
) -> RecurrentMixer:
    """Return the mixer of a layer with states; implementation: of the kernels."""
    own = spec.recurrences[layer]
    if isinstance(own, ShortConvSpec):
        return ShortConv(
            spec=spec,
            layer=layer,
            own=own,
            dtype=dtype,
            method=method,
            implementation=implementation,
        )
    if isinstance(own, DeltaSpec):
        return GatedDelta(
            spec=spec,
            layer=layer,
            own=own,
            dtype=dtype,
            method=method,
            implementation=implementation,
        )
    return Mamba(
        spec=spec,
        layer=layer,
        own=own,
        dtype=dtype,
        method=method,
        implementation=implementation,
    )


def _normalise(rows: Tensor, eps: float) -> Tensor:
    """Divide float32 rows by the root of the mean of their squares."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
