"""The layers of a decoder, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.silu_mul import silu_mul
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.spec.feed_forwards import Activation
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from shared.model.linear.base import LinearMethod
    from shared.model.spec.feed_forwards import FeedForwardSpec
    from shared.model.spec.norms import NormSpec


class Norm(nn.Module):
    """A norm over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        raise NotImplementedError

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of the sum, and the sum."""
        total = residual + x
        return self(total), total


class NoNorm(Norm):
    """The identity."""

    def forward(self, x: Tensor) -> Tensor:
        """See `Norm.forward`."""
        return x


class RMSNorm(Norm):
    """Root-mean-square norm with a weight."""

    def __init__(
        self, *, size: int, eps: float, dtype: torch.dtype, implementation: str = "torch"
    ) -> None:
        """Make the norm. implementation: of the kernel, `torch` or `triton`."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._normalise = partial(rms_norm, eps=eps, implementation=implementation)
        self._normalise_sum = partial(add_rms_norm, eps=eps, implementation=implementation)

    def forward(self, x: Tensor) -> Tensor:
        """See `Norm.forward`."""
        return self._normalise(x, self.weight)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """See `Norm.of_sum`."""
        return self._normalise_sum(x, residual, self.weight)


class OffsetRMSNorm(Norm):
    """Root-mean-square norm; 1 + weight multiplies in float32, then the result is rounded."""

    def __init__(self, *, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """See `Norm.forward`."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).to(x.dtype)


class LayerNorm(Norm):
    """PyTorch's layer norm; weight and bias may be missing."""

    def __init__(self, norm: NormSpec, *, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = (
            nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False) if has else None
            for has in (norm.has_weight, norm.has_bias)
        )

    def forward(self, x: Tensor) -> Tensor:
        """See `Norm.forward`."""
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def make_qk_norm(
    over: QkNorm, norm: NormSpec, num_heads: int, head_dim: int, dtype: torch.dtype
) -> Norm:
    """Return the norm of queries or of keys that a description asks for."""
    if over is QkNorm.EACH_HEAD:
        return EachHeadNorm(norm, num_heads=num_heads, head_dim=head_dim, dtype=dtype)
    size = head_dim if over is QkNorm.HEAD else num_heads * head_dim
    return make_norm(norm, size=size, dtype=dtype)


class EachHeadNorm(Norm):
    """A norm over the numbers of each head, with a weight for each head."""

    def __init__(
        self, norm: NormSpec, *, num_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._plain = make_norm(replace(norm, has_weight=False), size=head_dim, dtype=dtype)
        #: [num_heads * head_dim]
        self.weight = nn.Parameter(
            torch.empty(num_heads * head_dim, dtype=dtype), requires_grad=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., num_heads, head_dim]."""
        wide: Tensor = self._plain(x.float())
        return (wide * self.weight.float().view(x.shape[-2:])).to(x.dtype)


def make_norm(
    norm: NormSpec, *, size: int, dtype: torch.dtype, implementation: str = "torch"
) -> Norm:
    """Return the norm that a description asks for, over rows of `size` numbers.

    implementation: of the kernel, `torch` or `triton`, for those that have one.
    """
    if norm.kind is NormKind.LAYER:
        return LayerNorm(norm, size=size, dtype=dtype)
    if not norm.has_weight:
        plain = RMSNorm(size=size, eps=norm.eps, dtype=dtype, implementation=implementation)
        plain.weight.fill_(1.0)
        return plain
    if norm.kind is NormKind.OFFSET_RMS:
        return OffsetRMSNorm(size=size, eps=norm.eps, dtype=dtype)
    return RMSNorm(size=size, eps=norm.eps, dtype=dtype, implementation=implementation)


_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    Activation.RELU: functional.relu,
    Activation.RELU2: lambda x: functional.relu(x).square(),
}


def activate(kind: Activation, x: Tensor) -> Tensor:
    """Return the function of one operand."""
    return _ACTIVATIONS[kind](x)


def _clamped(gate: Tensor, up: Tensor) -> Tensor:
    """See `Activation.CLAMPED`."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def _gate(own: FeedForwardSpec, implementation: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of gate and up."""
    act, factor = _gate_of(own.activation, implementation), own.gate_multiplier
    return act if factor == 1 else lambda gate, up: act(gate * factor, up)


def _gate_of(kind: Activation, implementation: str) -> Callable[[Tensor, Tensor], Tensor]:
    if kind is Activation.SILU:
        return partial(silu_mul, implementation=implementation)
    if kind is Activation.CLAMPED:
        return _clamped
    act = _ACTIVATIONS[kind]
    return lambda gate, up: act(gate) * up


class PlainMLP(nn.Module):
    """A projection down of a nonlinear function of a projection up."""

    def __init__(
        self,
        own: FeedForwardSpec,
        *,
        hidden: int,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        super().__init__()
        #: Of what `up` returns: what `down` reads.
        self.gate = _ACTIVATIONS[own.activation]
        self.up = FusedLinear(
            in_size=hidden, out_sizes=(own.inner_size,), bias=own.bias, dtype=dtype, method=method
        )
        self.down = FusedLinear(
            in_size=own.inner_size, out_sizes=(hidden,), bias=own.bias, dtype=dtype, method=method
        )

    @property
    def entry(self) -> FusedLinear:
        """What reads the rows."""
        return self.up

    def forward(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] to the same."""
        out: Tensor = self.down(self.gate(self.up(x)[0]))[0]
        return out


class GatedMLP(nn.Module):
    """A projection down of act(gate) times up."""

    def __init__(
        self,
        own: FeedForwardSpec,
        *,
        hidden: int,
        dtype: torch.dtype,
        implementation: str = "torch",
        method: LinearMethod = DENSE,
    ) -> None:
        """implementation: of SwiGLU's gate, `torch` or `triton`."""
        super().__init__()
        inner, bias = own.inner_size, own.bias
        #: Of what `gate_up` returns: what `down` reads.
        self.gate = _gate(own, implementation)
        self.gate_up = FusedLinear(
            in_size=hidden,
            out_sizes=(inner, inner),
            bias=bias,
            dtype=dtype,
            method=method,
            is_gated=True,
        )
        self.down = FusedLinear(
            in_size=inner, out_sizes=(hidden,), bias=bias, dtype=dtype, method=method
        )

    @property
    def entry(self) -> FusedLinear:
        """What reads the rows."""
        return self.gate_up

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden] to the same shape."""
        gate, up = self.gate_up(x)
        out: Tensor = self.down(self.gate(gate, up))[0]
        return out
