"""A decoder's layer as a PyTorch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from shared.model.decoder.experts import Experts, make_feed_forward
from shared.model.decoder.layer_inputs import InputGate
from shared.model.decoder.layers import NoNorm, make_norm
from shared.model.decoder.mixing.grouped import Attention
from shared.model.decoder.mixing.latent import LatentAttention
from shared.model.decoder.mixing.recurrent import RecurrentMixer, make_recurrent
from shared.model.linear.base import DENSE
from shared.model.spec.mixers import AttentionSpec, LatentAttentionSpec
from shared.model.spec.norms import PLACES, NormPlace

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.decoder.layers import Norm
    from shared.model.linear.base import LinearMethod
    from shared.model.spec.decoder import DecoderSpec


def _make_mixer(
    *,
    spec: DecoderSpec,
    layer: int,
    backend: AttentionBackend,
    dtype: torch.dtype,
    method: LinearMethod,
) -> Attention | LatentAttention | RecurrentMixer:
    """Return the mixer that a layer's description asks for."""
    own = spec.layers[layer].mixer
    if isinstance(own, LatentAttentionSpec):
        return LatentAttention(
            spec=spec, own=own, layer=layer, backend=backend, dtype=dtype, method=method
        )
    if isinstance(own, AttentionSpec):
        return Attention(spec=spec, layer=layer, backend=backend, dtype=dtype, method=method)
    return make_recurrent(
        spec=spec, layer=layer, dtype=dtype, method=method, implementation=backend.name
    )


class DecoderLayer(nn.Module):
    """A mixer, mostly attention, and a feed-forward, with norms, around a residual."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        super().__init__()
        own, kernels = spec.layers[layer], backend.name
        self._place, self._multipliers = own.norms, own.multipliers
        #: See `read_beside`.
        self._norm_before: list[Norm] = []
        self.attention_norm, self.attention_output_norm, self.mlp_norm, self.mlp_output_norm = (
            make_norm(spec.norm, size=spec.hidden_size, dtype=dtype, implementation=kernels)
            if name in PLACES[own.norms]
            else NoNorm()
            for name in (
                "attention_norm",
                "attention_output_norm",
                "mlp_norm",
                "mlp_output_norm",
            )
        )
        self.attention = _make_mixer(
            spec=spec, layer=layer, backend=backend, dtype=dtype, method=method
        )
        self.mlp = make_feed_forward(
            own.feed_forward,
            hidden=spec.hidden_size,
            norm=spec.norm,
            dtype=dtype,
            implementation=kernels,
            method=method,
        )
        self.input_gate: InputGate | None = None
        if spec.layer_inputs is not None:
            self.input_gate = InputGate(
                spec, spec.layer_inputs, dtype=dtype, implementation=kernels, method=method
            )
        self.scale: nn.Parameter | None = None
        if own.has_scale:
            self.scale = nn.Parameter(torch.empty(1, dtype=dtype), requires_grad=False)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        cos_sin: Tensor,
        kv_cache: PagedCache,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """Map [num_tokens, hidden] to the next addend and residual, of the same shape.

        Their addition is left to the next norm, which reads the sum. The first layer gets no
        residual. Where `metadata.wanted` names tokens, only theirs are returned: keys, values and
        states are those of all, and nothing behind them is computed for the others.
        """
        mixer_factor, feed_forward_factor = self._multipliers
        if self._place is NormPlace.SUM:
            return self._normalise_sums(x, residual, cos_sin, kv_cache, metadata)
        if self._place is NormPlace.BESIDE:
            assert residual is not None  # there is a layer before it
            x, residual = self._norm_before[0](residual), residual + x
        elif residual is None:
            x, residual = self.attention_norm(x), x
        else:
            x, residual = self.attention_norm.of_sum(x, residual)
        mixed = self.attention(x, cos_sin, kv_cache, metadata)
        if metadata.wanted is not None:
            x, residual, mixed = (part[metadata.wanted] for part in (x, residual, mixed))
            if not len(mixed):
                return mixed, residual
        if self._place is NormPlace.ALONE:
            return _scaled(mixed, mixer_factor), residual
        if self._place in (NormPlace.PARALLEL, NormPlace.PARALLEL_TWO):
            if self._place is NormPlace.PARALLEL_TWO:
                x = self.mlp_norm(residual)
            return _scaled(mixed + self._fed_forward(x, residual), mixer_factor), residual
        mixed = _scaled(self.attention_output_norm(mixed), mixer_factor)
        x, residual = self.mlp_norm.of_sum(mixed, residual)
        fed = self.mlp_output_norm(self._fed_forward(x, residual))
        return _scaled(fed, feed_forward_factor), residual

    def read_beside(self, before: DecoderLayer) -> None:
        """Let the mixer read what that of the layer before reads: `NormPlace.BESIDE`."""
        # In a list PyTorch does not take the norm for one of this layer's parts.
        self._norm_before = [before.attention_norm]

    def _fed_forward(self, x: Tensor, stream: Tensor) -> Tensor:
        """The feed-forward of x, which is the norm of the stream."""
        out: Tensor = self.mlp(x, stream) if isinstance(self.mlp, Experts) else self.mlp(x)
        return out

    def finish(self, x: Tensor, residual: Tensor, row: Tensor | None) -> tuple[Tensor, Tensor]:
        """Map what `forward` returned to the same with the layer's input, and scaled.

        row: see `InputGate.forward`.
        """
        if self.input_gate is not None and row is not None:
            residual = residual + x
            x = self.input_gate(residual, row)
        if self.scale is not None:
            x, residual = x * self.scale, residual * self.scale
        return x, residual

    def _normalise_sums(
        self,
        x: Tensor,
        residual: Tensor | None,
        cos_sin: Tensor,
        kv_cache: PagedCache,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """As `forward`; nothing is added to what this returns."""
        if residual is not None:
            x = x + residual
        x = x + self.attention(x, cos_sin, kv_cache, metadata)
        if metadata.wanted is not None:
            x = x[metadata.wanted]
            if not len(x):
                return x, x
        x = self.attention_norm(x)
        x = self.mlp_norm(x + self._fed_forward(x, x))
        return torch.zeros_like(x), x


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor
