"""What heads need of the model whose tokens they guess, and what a proposer needs of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata
    from shared.model.spec import DecoderSpec


class Target(Protocol):
    """The model whose tokens are guessed. Published heads leave out what they share with it."""

    spec: DecoderSpec
    #: The dtype of its weights.
    dtype: torch.dtype

    @property
    def hidden_dtype(self) -> torch.dtype:
        """The dtype of hidden states that `compute_logits` takes."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings [n, hidden] of int64 [n]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """float32 [n, vocab_size] of hidden states behind the last norm; the caller's own."""
        ...


class FeatureHead(Protocol):
    """A small decoder over features: it goes on from the target's last one by its own guesses.

    The feature of position i belongs to token i; with it the head reads token i + 1, and guesses
    the feature of position i + 1, from which logits of token i + 2 follow.
    """

    #: Of the head's own layers: what its KV looks like.
    spec: DecoderSpec
    dtype: torch.dtype

    @property
    def captured_layers(self) -> tuple[int, ...]:
        """Target layers whose inputs are combined, in order; none: its final hidden states."""
        ...

    def features(self, hidden: Tensor) -> Tensor:
        """Features [n, hidden of the head] of what the target gave, side by side: [n, size]."""
        ...

    def forward(
        self,
        token_ids: Tensor,
        features: Tensor,
        positions: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Guessed features [num_tokens, hidden of the head]; writes the head's own KV."""
        ...

    def compute_logits(self, features: Tensor) -> Tensor:
        """float32 [n, size of the head's vocabulary] of guessed features."""
        ...

    def most_likely(self, features: Tensor) -> Tensor:
        """int64 [n]: the most likely tokens, as the target counts them."""
        ...
