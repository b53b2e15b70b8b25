"""Latent attention as a module: see `LatentAttentionSpec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.latent_attention import LatentQueries, LatentWeights
from kernels.rotary import rotate
from shared.model.decoder.layers import NoNorm, Norm, RMSNorm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.linear.base import LinearMethod
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import LatentAttentionSpec


class LatentAttention(nn.Module):
    """Attention over one row per token, of which each head's keys and values are products."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        own: LatentAttentionSpec,
        layer: int,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        """own: the mixer of the layer."""
        super().__init__()
        #: This layer's KV cache, and its index there.
        self.group, self.place = spec.kv_place(layer)
        #: Which of the decoder's rotations is this layer's.
        self.rope = spec.ropes.index(own.rope)
        self.spec = own
        self.backend = backend
        #: PyTorch computes it by the lengths on the host.
        self.is_recordable = backend.name == "triton"
        hidden, heads = spec.hidden_size, own.num_heads

        def norm(size: int) -> RMSNorm:
            return RMSNorm(size=size, eps=own.norm_eps, dtype=dtype, implementation=backend.name)

        def product(in_size: int, *out_sizes: int, bias: bool, how: LinearMethod) -> FusedLinear:
            return FusedLinear(
                in_size=in_size, out_sizes=out_sizes, bias=bias, dtype=dtype, method=how
            )

        self.q_down: FusedLinear | None = None
        self.q_norm: Norm = NoNorm()
        if own.q_rank is not None:
            self.q_down = product(hidden, own.q_rank, bias=own.bias, how=method)
            self.q_norm = norm(own.q_rank)
        # Of all heads, the numbers that are not rotated come first.
        q_sizes = heads * own.plain_dim, heads * own.rope_dim
        self.q_up = product(own.q_rank or hidden, *q_sizes, bias=False, how=method)
        self.kv_down = product(hidden, own.kv_rank, own.rope_dim, bias=own.bias, how=method)
        self.kv_norm = norm(own.kv_rank)
        # Of all heads, the keys come first. Queries are multiplied by the keys' rows from the other
        # side, so that the weight keeps the model's dtype.
        kv_sizes = heads * own.plain_dim, heads * own.value_dim
        self.kv_up = product(own.kv_rank, *kv_sizes, bias=False, how=DENSE)
        self.output = product(heads * own.value_dim, hidden, bias=own.bias, how=method)

    def forward(
        self, x: Tensor, cos_sin: Tensor, kv_cache: PagedCache, metadata: AttentionMetadata
    ) -> Tensor:
        """[num_tokens, hidden] to the same; writes this layer's slots of the cache."""
        own = self.spec
        plain, rotated = self.q_up(x if self.q_down is None else self.q_norm(self.q_down(x)[0]))
        latents, shared = self.kv_down(x)
        row = torch.cat((self.kv_norm(latents), rotate(shared[:, None], cos_sin)[:, 0]), dim=-1)
        queries = LatentQueries(
            plain.unflatten(-1, (own.num_heads, -1)),
            rotate(rotated.unflatten(-1, (own.num_heads, -1)), cos_sin),
        )
        mixed = self.backend.forward_latent(
            queries, row, self.weights(), kv_cache, self.place, metadata, scale=own.scale
        )
        out: Tensor = self.output(mixed.flatten(-2))[0]
        return out

    def weights(self) -> LatentWeights:
        """Return what makes keys and values of rows, as views."""
        (keys, _), (values, _) = self.kv_up.part(0), self.kv_up.part(1)
        heads = (self.spec.num_heads, -1)
        return LatentWeights(keys.unflatten(0, heads), values.unflatten(0, heads))
