"""Interfaces: the target of heads, and the heads of a proposer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata
    from shared.model.spec.decoder import DecoderSpec


class Target(Protocol):
    """The model whose tokens are drafted.

    Published heads omit the parts that they share with it.
    """

    spec: DecoderSpec
    #: Dtype of its weights.
    dtype: torch.dtype

    @property
    def hidden_dtype(self) -> torch.dtype:
        """Dtype of the hidden states that `compute_logits` takes."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [n, hidden] of int64 [n]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [n, vocab_size] of hidden states after the last norm; the caller's
        own.
        """
        ...


class FeatureHead(Protocol):
    """A small decoder over features: it continues from the target's last one by its own
    predictions.

    The feature of position i belongs to token i; with it the head reads token i + 1, and predicts
    the feature of position i + 1, from which logits of token i + 2 follow.
    """

    #: Description of the head's own layers, and so of its KV.
    spec: DecoderSpec
    dtype: torch.dtype

    @property
    def captured_layers(self) -> tuple[int, ...]:
        """Target layers whose inputs are combined, in order; none: its final hidden states."""
        ...

    def features(self, hidden: Tensor) -> Tensor:
        """Return features [n, hidden of the head] of the target's concatenated states [n, size]."""
        ...

    def forward(
        self,
        token_ids: Tensor,
        features: Tensor,
        positions: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Return predicted features [num_tokens, hidden of the head]; write the head's own KV."""
        ...

    def compute_logits(self, features: Tensor) -> Tensor:
        """Return float32 logits [n, size of the head's vocabulary] of predicted features."""
        ...

    def most_likely(self, features: Tensor) -> Tensor:
        """Return int64 [n]: the most likely tokens, as ids of the target."""
        ...
