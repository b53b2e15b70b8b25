"""An encoder as PyTorch modules, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding

from kernels.rotary import rotate
from shared.model.decoder.layers import NoNorm, make_norm
from shared.model.encoders.operations import TORCH
from shared.model.linear.fused import FusedLinear
from shared.model.rope_table import cos_sin_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.decoder.layers import Norm
    from shared.model.encoders.base import TextBatch
    from shared.model.encoders.operations import Operations
    from shared.model.encoders.spec import EncoderLayerSpec, EncoderSpec
    from shared.model.rope import RopeConfig


class EncoderLayer(nn.Module):
    """Attention and a feed-forward, with norms, around a residual."""

    def __init__(
        self,
        spec: EncoderSpec,
        own: EncoderLayerSpec,
        *,
        dtype: torch.dtype,
        operations: Operations = TORCH,
    ) -> None:
        super().__init__()
        self._spec, self._own, self._operations = spec, own, operations
        self.attention_norm: Norm = NoNorm()
        if own.has_first_norm:
            self.attention_norm = make_norm(spec.norm, size=spec.hidden_size, dtype=dtype)
        self.mlp_norm = make_norm(spec.norm, size=spec.hidden_size, dtype=dtype)
        self.qkv, self.output, self.up, self.down = (
            FusedLinear(
                in_size=in_size, out_sizes=sizes, bias=bias, dtype=dtype, method=operations.method
            )
            for sizes, in_size, bias in map(spec.linear_sizes, ("qkv", "output", "up", "down"))
        )

    def forward(self, x: Tensor, lengths: Sequence[int], cos_sin: Tensor | None) -> Tensor:
        """Map [num_tokens, hidden], of texts of these lengths, to the same shape."""
        if self._spec.is_post_norm:
            x = self.attention_norm(self._attend(x, lengths, cos_sin).add_(x))
            out: Tensor = self.mlp_norm(self._feed(x).add_(x))
            return out
        x = x + self._attend(self.attention_norm(x), lengths, cos_sin)
        return self._feed(self.mlp_norm(x)).add_(x)

    def _attend(self, x: Tensor, lengths: Sequence[int], cos_sin: Tensor | None) -> Tensor:
        head_dim = self._spec.head_dim
        q, k, v = (part.unflatten(-1, (-1, head_dim)) for part in self.qkv(x))
        if cos_sin is not None:
            q, k = rotate(q, cos_sin).to(v.dtype), rotate(k, cos_sin).to(v.dtype)
        mixed = self._operations.attend(
            q, k, v, lengths, scale=head_dim**-0.5, window=self._own.window
        )
        out: Tensor = self.output(mixed.flatten(-2))[0]
        return out

    def _feed(self, x: Tensor) -> Tensor:
        kind = self._spec.feed_forward.activation
        gate, *up = self.up(x)
        inner = self._operations.gate(kind, gate, up[0] if up else None)
        out: Tensor = self.down(inner)[0]
        return out


class Encoder(nn.Module):
    """See `TextEncoder`. Weights are uninitialised until the loader fills them."""

    def __init__(
        self,
        spec: EncoderSpec,
        *,
        weights: torch.dtype,
        dtype: torch.dtype,
        operations: Operations = TORCH,
    ) -> None:
        """Build the modules. `operations` are those of the layers.

        weights: dtype of the embedding; dtype: of all else but what the linears' method keeps.
        """
        super().__init__()
        self.spec, hidden = spec, spec.hidden_size
        self._dtype = dtype
        self.embedding = _table(spec.vocab_size, hidden, weights)
        self.positions: nn.Parameter | None = None
        if spec.positions is not None:
            self.positions = _table(spec.positions.num_rows, hidden, dtype)
        self.token_types: nn.Embedding | None = None
        if spec.num_token_types:
            self.token_types = nn.Embedding(spec.num_token_types, hidden, dtype=dtype)
            self.token_types.requires_grad_(requires_grad=False)
        self.embedding_norm = make_norm(spec.norm, size=hidden, dtype=dtype)
        self.encoder_layers = [
            EncoderLayer(spec, own, dtype=dtype, operations=operations) for own in spec.layers
        ]
        self.layers = nn.ModuleList(self.encoder_layers)
        self.norm: Norm = NoNorm()
        if not spec.is_post_norm:
            self.norm = make_norm(spec.norm, size=hidden, dtype=dtype)
        #: Rotations of the layers, each once, and their angles, in float32.
        self._ropes: list[RopeConfig] = []
        for own in spec.layers:
            if own.rope is not None and own.rope not in self._ropes:
                self._ropes.append(own.rope)
        self._tables = [cos_sin_table(each, spec.max_len, torch.float32) for each in self._ropes]

    @property
    def hidden_size(self) -> int:
        """See `TextEncoder.hidden_size`."""
        return self.spec.hidden_size

    @property
    def max_len(self) -> int:
        """See `TextEncoder.max_len`."""
        return self.spec.max_len

    @property
    def vocab_size(self) -> int:
        """See `TextEncoder.vocab_size`."""
        return self.spec.vocab_size

    @property
    def num_token_types(self) -> int:
        """See `TextEncoder.num_token_types`."""
        return self.spec.num_token_types

    @torch.inference_mode()
    def encode(self, batch: TextBatch) -> Tensor:
        """See `TextEncoder.encode`."""
        x = self.embedding_norm(self._embed(batch))
        angles = [table[batch.positions] for table in self._tables]
        for layer, own in zip(self.encoder_layers, self.spec.layers, strict=True):
            cos_sin = None if own.rope is None else angles[self._ropes.index(own.rope)]
            x = layer(x, batch.lengths, cos_sin)
        out: Tensor = self.norm(x)
        return out

    def _embed(self, batch: TextBatch) -> Tensor:
        x = embedding(batch.token_ids, self.embedding).to(self._dtype)
        if self.token_types is not None:
            types = batch.token_types
            x = x + (self.token_types.weight[0] if types is None else self.token_types(types))
        if self.positions is not None and self.spec.positions is not None:
            x = x + self.positions[batch.positions + self.spec.positions.first_row]
        return x


def _table(rows: int, columns: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, dtype=dtype), requires_grad=False)
