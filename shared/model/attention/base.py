"""The attention interface: from the projections, through the paged KV, to the outputs."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from kernels.latent_attention import LatentQueries, LatentWeights
    from kernels.paged_attention.scores import Scores
    from kernels.rope_kv_write.norms import HeadNorms
    from shared.model.adapted.rows import AdapterRows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """One packed batch of sequences of different lengths."""

    #: int32 [num_seqs + 1]: where each sequence's tokens start among the packed ones.
    query_start_loc: Tensor
    #: int32 [num_seqs]: context length including this step's tokens.
    seq_lens: Tensor
    #: int32 [num_seqs, max_blocks]
    block_tables: Tensor
    #: int64 [num_tokens]: block * block_size + offset.
    slot_mapping: Tensor
    #: The same numbers on the host, for implementations that loop there.
    query_lens_list: Sequence[int]
    seq_lens_list: Sequence[int]
    #: int64, ascending: tokens whose hidden states the model returns, in this order; None: all.
    wanted: Tensor | None = None
    #: The same numbers on the host.
    wanted_list: Sequence[int] = ()
    #: int32 [num_state_groups, num_seqs, 2]: the block with a sequence's state before its tokens,
    #: -1 if there are none before, and the block for its state after them. None without states.
    states: Tensor | None = None
    #: int64 [num_tokens]: of the tokens in their sequences. Given to layers that need them.
    positions: Tensor | None = None
    #: Of all tokens, in the first group's record: which adapter each has; None: none has one.
    adapters: AdapterRows | None = None
    #: The same batch for the other groups of layers: tables and slots differ.
    others: tuple[AttentionMetadata, ...] = ()

    def of_group(self, number: int) -> AttentionMetadata:
        """Return the batch for a group of layers. This record is the first group's.

        Groups with states have no tables and slots of their own: they read `states` of this one.
        """
        return self.others[number - 1] if 0 < number <= len(self.others) else self

    def of_tokens(self, tokens: Tensor, places: Sequence[int]) -> AttentionMetadata:
        """Return a batch in which each of these tokens is a sequence, for layers that keep nothing.

        places: `tokens` on the host. Tables are those of the tokens' sequences; without states.
        """
        ends = list(accumulate(self.query_lens_list))
        rows = [bisect_right(ends, place) for place in places]
        lengths = [
            self.seq_lens_list[row] - (ends[row] - 1 - place)
            for row, place in zip(rows, places, strict=True)
        ]
        device, num = tokens.device, len(places)
        return AttentionMetadata(
            query_start_loc=torch.arange(num + 1, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
            block_tables=self.block_tables[torch.tensor(rows, device=device)],
            slot_mapping=self.slot_mapping[tokens],
            query_lens_list=[1] * num,
            seq_lens_list=lengths,
            positions=None if self.positions is None else self.positions[tokens],
        )


class AttentionBackend(Protocol):
    """One implementation. Not for two threads at a time: it may keep memory between calls."""

    @property
    def name(self) -> str:
        """Name in the registry; also selects the implementation of other kernels."""
        ...

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        cos_sin: Tensor,
        kv_cache: PagedCache,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scores: Scores,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Rotate q and k, store k and v in their slots, then attend causally up to each token.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]; cos_sin:
        [num_tokens, head_dim], cosines before sines; norms: of q and k, before the rotation;
        kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], written in place.
        Without k and v, another layer has written those of these tokens into its slots already.
        `scores` say what a token sees, and how much of it. Returns the shape of q.
        Whatever lies in the cache beyond a sequence's length, NaN included, has no influence.
        """
        ...

    def forward_latent(
        self,
        queries: LatentQueries,
        rows: Tensor,
        weights: LatentWeights,
        kv_cache: PagedCache,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
    ) -> Tensor:
        """Store `rows` in their slots, then attend causally up to each token.

        rows: [num_tokens, latent_dim + rope_dim], rotated like the queries; kv_cache:
        [num_blocks, num_layers, 1, 1, block_size, latent_dim + rope_dim], written in
        place. Returns [num_tokens, num_heads, value_dim].
        With `triton`, PyTorch computes sequences with several tokens.
        """
        ...
