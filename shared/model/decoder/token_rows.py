"""The tokens whose rows a decoder's layers compute: all of a step, then those that are wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionMetadata
    from shared.model.decoder.decoder_layer import DecoderLayer


@dataclass(frozen=True, slots=True)
class TokenRows:
    """What layers read beside the stream, by token."""

    positions: Tensor
    #: By rotation of the decoder.
    cos_sin: Sequence[Tensor]
    #: The layers' own inputs [num_tokens, num_layers, size], if there are any.
    inputs: Tensor | None
    #: By group of layers; of no token more is wanted than of the others.
    batches: Sequence[AttentionMetadata]

    def through(
        self,
        layer: DecoderLayer,
        x: Tensor,
        residual: Tensor | None,
        kv_caches: Sequence[PagedCache],
        *,
        wanted: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return what a layer returns of the `wanted` tokens; None: of all."""
        group, rope = layer.attention.group, layer.attention.rope
        angles = self.positions if rope is None else self.cos_sin[rope]
        batch = self.batches[group]
        if wanted is not None:
            batch = replace(batch, wanted=wanted)
        out: tuple[Tensor, Tensor] = layer(x, residual, angles, kv_caches[group], batch)
        return out

    def input_of(self, layer: int) -> Tensor | None:
        """The layer's own input."""
        return None if self.inputs is None else self.inputs[:, layer]

    def only(self, wanted: Tensor, places: Sequence[int]) -> TokenRows:
        """Return some of the tokens, for layers that keep nothing; places: `wanted` on the host."""
        return TokenRows(
            self.positions[wanted],
            [table[wanted] for table in self.cos_sin],
            None if self.inputs is None else self.inputs[wanted],
            [batch.of_tokens(wanted, places) for batch in self.batches],
        )
