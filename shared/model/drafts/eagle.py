"""EAGLE: a decoder layer that predicts the target's next hidden state from the last one.

Y. Li, F. Wei, C. Zhang, H. Zhang, "EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty" (ICML 2024). A feature is the target's hidden state after its last norm, so the
target's own output head turns a predicted one into logits. Checkpoints have `fc`, the layers and
usually a copy of the embedding; the first layer has no input norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from shared.errors import ModelLoadError
from shared.model.decoder.decoder_layer import DecoderLayer
from shared.model.decoder.layers import RMSNorm
from shared.model.drafts.choice import most_likely
from shared.model.drafts.embed import embed
from shared.model.drafts.stored import head_spec, layer_targets, read_head
from shared.model.rope_table import rotation_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.drafts.base import Target
    from shared.model.drafts.stored import StoredHead
    from shared.model.spec.decoder import DecoderSpec

#: HASS (Zhang et al. 2024) and checkpoints like it normalise both inputs.
_INPUT_NORMS = ("embedding_layernorm.weight", "hidden_states_layernorm.weight")
#: By other writers' names: the names here.
_PREFIXES = {"model.": "", "fusion_fc.": "fc."}
_EMBEDDING = "embed_tokens.weight"
_FIRST_NORM = "layers.0.input_layernorm.weight"
_UNUSED = ("lm_head.weight", _FIRST_NORM)


def load_eagle(model_dir: Path, target: Target, backend: AttentionBackend) -> EagleHead:
    """Load a head for `target`, onto the default device, in the dtype of the target's weights.

    Raises:
        ModelLoadError: it cannot be used; names the file, and the tensor or the field.
    """
    stored = read_head(model_dir).renamed(_PREFIXES)
    spec = head_spec(stored, layer="layers.0", target=target.spec)
    if spec.hidden_size != target.spec.hidden_size:
        raise ModelLoadError(
            f"{stored.path.with_name('config.json')}: hidden_size is {spec.hidden_size}, "
            f"the target's is {target.spec.hidden_size}"
        )
    head = EagleHead(spec=spec, backend=backend, target=target, stored=stored)
    stored.fill(head.weight_targets(), ignored=_UNUSED)
    return head.eval()


class EagleHead(nn.Module):
    """See `FeatureHead`. Weights are uninitialised until they are filled."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        backend: AttentionBackend,
        target: Target,
        stored: StoredHead,
    ) -> None:
        """Build the head.

        Only the names in `stored` count: optional parts exist if they are stored.
        """
        super().__init__()
        self.spec, self.dtype, size = spec, target.dtype, spec.hidden_size
        self._target = target
        self.input_norms = [
            RMSNorm(
                size=size,
                eps=spec.norm.eps,
                dtype=self.dtype,
                implementation=backend.name,
            )
            for name in _INPUT_NORMS
            if name in stored.tensors
        ]
        self.fc = nn.Linear(2 * size, size, bias="fc.bias" in stored.tensors, dtype=self.dtype)
        self.embedding: nn.Parameter | None = None
        if _EMBEDDING in stored.tensors:
            shape = (spec.vocab_size, size)
            self.embedding = nn.Parameter(torch.empty(shape, dtype=self.dtype), requires_grad=False)
        self.decoder_layers = [
            DecoderLayer(spec=spec, layer=layer, backend=backend, dtype=self.dtype)
            for layer in range(spec.num_layers)
        ]
        self.layers = nn.ModuleList(self.decoder_layers)
        (table,) = rotation_tables(spec, self.dtype)
        self.cos_sin: Tensor = table.to(self.fc.weight.device)

    def weight_targets(self) -> Mapping[str, Tensor]:
        """Return the place of each tensor of the checkpoint."""
        targets: dict[str, Tensor] = {"fc.weight": self.fc.weight.detach()}
        if self.fc.bias is not None:
            targets["fc.bias"] = self.fc.bias.detach()
        if self.embedding is not None:
            targets[_EMBEDDING] = self.embedding
        for name, norm in zip(_INPUT_NORMS, self.input_norms, strict=False):
            targets[name] = norm.weight
        for number, layer in enumerate(self.decoder_layers):
            targets |= layer_targets(layer, self.spec, number, stored=f"layers.{number}")
        targets.pop(_FIRST_NORM)
        return targets

    @property
    def captured_layers(self) -> tuple[int, ...]:
        """See `FeatureHead.captured_layers`: the final hidden states."""
        return ()

    def features(self, hidden: Tensor) -> Tensor:
        """See `FeatureHead.features`: the hidden states unchanged."""
        return hidden.to(self.dtype)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        features: Tensor,
        positions: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """See `FeatureHead.forward`."""
        embedded = embed(token_ids, self.embedding, self._target, self.dtype)
        if self.input_norms:
            of_embedding, of_features = self.input_norms
            embedded, features = of_embedding(embedded), of_features(features)
        inputs = linear(torch.cat((embedded, features), dim=-1), self.fc.weight, self.fc.bias)
        cos_sin = self.cos_sin[positions]
        first, *others = self.decoder_layers
        attended = first.attention(inputs, cos_sin, kv_cache, metadata)
        x, residual = first.mlp_norm.of_sum(attended, inputs)
        x = first.mlp(x)
        for layer in others:
            x, residual = layer(x, residual, cos_sin, kv_cache, metadata)
        guessed: Tensor = x + residual
        return guessed

    def compute_logits(self, features: Tensor) -> Tensor:
        """See `FeatureHead.compute_logits`: the target's output head."""
        return self._target.compute_logits(features.to(self._target.hidden_dtype))

    def most_likely(self, features: Tensor) -> Tensor:
        """See `FeatureHead.most_likely`."""
        return most_likely(self.compute_logits(features))
