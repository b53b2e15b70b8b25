"""Decoders whose tokens see those behind them, as encoders: EmbeddingGemma, GTE-Qwen2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from kernels.rms_norm import rms_norm
from kernels.rotary import rotate
from shared.errors import ModelLoadError
from shared.model.attention.base import AttentionMetadata
from shared.model.checkpoint.config import parse_spec
from shared.model.decoder.causal_lm import CausalLM
from shared.model.encoders.operations import TORCH
from shared.model.encoders.whole_attention import whole_attention
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.mixers import AttentionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from kernels.latent_attention import LatentQueries, LatentWeights
    from kernels.paged_attention.scores import Scores
    from kernels.rope_kv_write.norms import HeadNorms
    from shared.model.encoders.base import TextBatch
    from shared.model.encoders.operations import Operations
    from shared.model.encoders.whole_attention import Attend
    from shared.model.spec.decoder import DecoderSpec

#: Keys of configs that say that tokens see those behind them.
_GEMMA, _CAUSAL = "use_bidirectional_attention", "is_causal"


def sees_all(raw: Mapping[str, Any]) -> bool:
    """Return whether a decoder's config says that tokens see those behind them."""
    return bool(raw.get(_GEMMA)) or raw.get(_CAUSAL) is False


def describe_bidirectional(raw: Mapping[str, Any]) -> DecoderSpec:
    """Return the description of such a decoder. A window w means those closer than w, both ways.

    Raises:
        ModelLoadError: it is of no family, or has parts that only decoders can have.
    """
    plain = {key: value for key, value in raw.items() if key not in (_GEMMA, _CAUSAL)}
    spec = parse_spec(plain)
    for number, layer in enumerate(spec.layers):
        own = layer.mixer
        if isinstance(layer.feed_forward, ExpertsSpec) or not isinstance(own, AttentionSpec):
            raise ModelLoadError(f"layer {number} is no plain one: it cannot read whole texts")
        if own.softcap is not None or own.has_sinks or own.is_chunked or own.kv_source is not None:
            raise ModelLoadError(
                f"layer {number} caps scores, or has sinks, chunks or another one's keys: it "
                "cannot read whole texts"
            )
    if not raw.get(_GEMMA):
        return spec
    # Gemma's configs count the tokens on both sides.
    layers = tuple(
        replace(layer, mixer=replace(layer.attention, window=layer.attention.window // 2 + 1))
        if layer.attention.window is not None
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


class WholeAttention:
    """See `AttentionBackend`: there is no cache, and a token sees those behind it."""

    name = "torch"

    def __init__(self, attend: Attend = whole_attention) -> None:
        self._attend = attend

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
        """See `AttentionBackend.forward`; the cache is not touched."""
        assert k is not None  # checked by `describe_bidirectional`
        assert v is not None
        if norms is not None:
            q = rms_norm(q, norms.q_weight, eps=norms.eps)
            k = rms_norm(k, norms.k_weight, eps=norms.eps)
        return self._attend(
            rotate(q, cos_sin),
            rotate(k, cos_sin),
            v,
            metadata.query_lens_list,
            scale=scores.scale,
            window=scores.window,
        )

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
        """See `AttentionBackend.forward_latent`: never called."""
        raise NotImplementedError


class BidirectionalDecoder:
    """See `TextEncoder`."""

    num_token_types = 0

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        dtype: torch.dtype,
        operations: Operations = TORCH,
    ) -> None:
        backend = WholeAttention(operations.attend)
        self.model = CausalLM(spec=spec, backend=backend, dtype=dtype, method=operations.method)
        self._caches = cast("list[PagedCache]", [None] * len(spec.kv_groups))

    @property
    def hidden_size(self) -> int:
        """See `TextEncoder.hidden_size`."""
        return self.model.spec.hidden_size

    @property
    def max_len(self) -> int:
        """See `TextEncoder.max_len`."""
        return self.model.spec.max_model_len

    @property
    def vocab_size(self) -> int:
        """See `TextEncoder.vocab_size`."""
        return self.model.spec.vocab_size

    def encode(self, batch: TextBatch) -> Tensor:
        """See `TextEncoder.encode`."""
        nothing = torch.empty(0, dtype=torch.int32)
        metadata = AttentionMetadata(
            query_start_loc=nothing,
            seq_lens=nothing,
            block_tables=nothing,
            slot_mapping=nothing,
            query_lens_list=batch.lengths,
            seq_lens_list=batch.lengths,
        )
        return self.model.forward(batch.token_ids, batch.positions, self._caches, metadata)
