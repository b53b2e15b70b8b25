"""The engine's interface of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds


class CausalModel(Protocol):
    """What a model runner asks of a model."""

    @property
    def is_recordable(self) -> bool:
        """Whether a decode step is the same work for any tokens and lengths: a graph replays it."""
        ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> torch.Tensor:
        """Return hidden states of the needed tokens; write all tokens' KV into their slots.

        They belong to the caller: no later call changes them. `given`: embeddings of some tokens.
        """
        ...

    @property
    def embeds_width(self) -> int:
        """Numbers in a row of `GivenEmbeds`."""
        ...

    @property
    def why_no_embeds(self) -> str | None:
        """Why embeddings cannot be given; None: they can. May compute something."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [n, vocab] of hidden states [n, hidden].

        They belong to the caller, which may write to them: no later call reads or changes them.
        """
        ...
