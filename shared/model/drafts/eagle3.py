"""EAGLE-3: a decoder layer over states of three of the target's layers, with its own output head.

Y. Li, F. Wei, C. Zhang, H. Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test" (2025). `fc` combines the inputs of a low, a middle and a high layer
of the target; after that the head continues from its own states. It may know only the frequent
tokens: the table `d2t` has the difference of each one's ids in the two vocabularies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from shared.errors import ModelLoadError
from shared.model.decoder.decoder_layer import DecoderLayer
from shared.model.decoder.layers import RMSNorm
from shared.model.decoder.mixing.grouped import Attention
from shared.model.drafts.choice import most_likely
from shared.model.drafts.embed import embed
from shared.model.drafts.stored import head_spec, layer_targets, read_head
from shared.model.linear.fused import FusedLinear
from shared.model.rope_table import rotation_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.drafts.base import Target
    from shared.model.drafts.stored import StoredHead
    from shared.model.spec.decoder import DecoderSpec

_EMBEDDING = "embed_tokens.weight"
_NUM_COMBINED = 3


def load_eagle3(model_dir: Path, target: Target, backend: AttentionBackend) -> Eagle3Head:
    """Load a head for `target`, onto the default device, in the dtype of the target's weights.

    Raises:
        ModelLoadError: it cannot be used; names the file, and the tensor or the field.
    """
    stored = read_head(model_dir).renamed({"model.": ""}).renamed({"layers.0.": "midlayer."})
    spec = head_spec(stored, layer="midlayer", target=target.spec)
    if spec.num_layers != 1:
        raise ModelLoadError(
            f"{stored.path.with_name('config.json')}: num_hidden_layers is {spec.num_layers}; "
            "an EAGLE-3 head has 1"
        )
    fc = (spec.hidden_size, _NUM_COMBINED * target.spec.hidden_size)
    if stored.shape("fc.weight") != fc:
        raise ModelLoadError(
            f"{stored.path}: tensor 'fc.weight' has shape {list(stored.shape('fc.weight'))}, this "
            f"target and hidden_size ask for {list(fc)}"
        )
    if _EMBEDDING not in stored.tensors and spec.hidden_size != target.spec.hidden_size:
        raise ModelLoadError(
            f"{stored.path}: tensor {_EMBEDDING!r} is missing, and the target's embedding has "
            f"{target.spec.hidden_size} numbers instead of {spec.hidden_size}"
        )
    head = Eagle3Head(spec=spec, backend=backend, target=target, stored=stored)
    stored.fill(head.weight_targets(), ignored=["d2t", "t2d", "mask_hidden"])
    return head.eval()


class Eagle3Head(nn.Module):
    """See `FeatureHead`. Weights are uninitialised until they are filled."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        backend: AttentionBackend,
        target: Target,
        stored: StoredHead,
    ) -> None:
        """Build the head. Of `stored`, config, names, shapes, and the vocabulary's table count."""
        super().__init__()
        self.spec, self.dtype, self._target = spec, target.dtype, target
        size, eps, dtype = spec.hidden_size, spec.norm.eps, self.dtype
        self._layers = _captured_layers(stored, target.spec.num_layers)
        self._residual_is_normed = bool(stored.raw.get("norm_before_residual", False))
        combined = _NUM_COMBINED * target.spec.hidden_size
        self.fc = nn.Linear(combined, size, bias="fc.bias" in stored.tensors, dtype=dtype)
        self.layer = DecoderLayer(spec=spec, layer=0, backend=backend, dtype=dtype)
        attention = self.layer.attention
        assert isinstance(attention, Attention)  # `head_spec` refuses others
        attention.qkv = FusedLinear(
            in_size=2 * size,
            out_sizes=attention.qkv.out_sizes,
            bias=spec.attention.qkv_bias,
            dtype=dtype,
        )
        self.feature_norm, self.norm = (
            RMSNorm(size=size, eps=eps, dtype=dtype, implementation=backend.name) for _ in range(2)
        )
        vocab = stored.shape("lm_head.weight")[0]
        self.lm_head = nn.Parameter(torch.empty(vocab, size, dtype=dtype), requires_grad=False)
        self.embedding: nn.Parameter | None = None
        if _EMBEDDING in stored.tensors:
            shape = (spec.vocab_size, size)
            self.embedding = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        device = self.lm_head.device
        #: int64 [vocab]: the target's id of each token that the head knows.
        self.target_ids = _target_ids(stored, vocab, spec.vocab_size).to(device)
        (table,) = rotation_tables(spec, dtype)
        self.cos_sin: Tensor = table.to(device)

    def weight_targets(self) -> Mapping[str, Tensor]:
        """Return the place of each tensor of the checkpoint."""
        targets: dict[str, Tensor] = {
            "fc.weight": self.fc.weight.detach(),
            "norm.weight": self.norm.weight,
            "lm_head.weight": self.lm_head,
            "midlayer.hidden_norm.weight": self.feature_norm.weight,
        }
        if self.fc.bias is not None:
            targets["fc.bias"] = self.fc.bias.detach()
        if self.embedding is not None:
            targets[_EMBEDDING] = self.embedding
        return targets | layer_targets(self.layer, self.spec, 0, stored="midlayer")

    @property
    def captured_layers(self) -> tuple[int, ...]:
        """See `FeatureHead.captured_layers`: low, middle, high."""
        return self._layers

    @torch.inference_mode()
    def features(self, hidden: Tensor) -> Tensor:
        """See `FeatureHead.features`."""
        return linear(hidden.to(self.dtype), self.fc.weight, self.fc.bias)

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
        normed = self.feature_norm(features)
        both = torch.cat((self.layer.attention_norm(embedded), normed), dim=-1)
        attended = self.layer.attention(both, self.cos_sin[positions], kv_cache, metadata)
        beside = normed if self._residual_is_normed else features
        x, residual = self.layer.mlp_norm.of_sum(attended, beside)
        guessed: Tensor = self.layer.mlp(x) + residual
        return guessed

    @torch.inference_mode()
    def compute_logits(self, features: Tensor) -> Tensor:
        """See `FeatureHead.compute_logits`: only for the tokens that the head knows."""
        return linear(self.norm(features), self.lm_head).float()

    def most_likely(self, features: Tensor) -> Tensor:
        """See `FeatureHead.most_likely`."""
        return self.target_ids[most_likely(self.compute_logits(features))]


def _captured_layers(stored: StoredHead, num_layers: int) -> tuple[int, ...]:
    """Return the config's layers, otherwise those that published heads were trained on.

    In `eagle_config` layers are counted by their outputs, elsewhere by their inputs.
    """
    key, where = "eagle_aux_hidden_state_layer_ids", stored.path.with_name("config.json")
    nested = stored.raw.get("eagle_config")
    named: Any = stored.raw.get(key)
    if named is None and isinstance(nested, dict) and isinstance(nested.get(key), list):
        named = [layer + 1 if isinstance(layer, int) else layer for layer in nested[key]]
    if named is None:
        named = [2, num_layers // 2, num_layers - 3]
    if (
        not isinstance(named, list)
        or len(named) != _NUM_COMBINED
        or not all(isinstance(layer, int) and 0 <= layer <= num_layers for layer in named)
    ):
        raise ModelLoadError(
            f"{where}: {key} {named} must be {_NUM_COMBINED} of the target's {num_layers} layers"
        )
    return tuple(named)


def _target_ids(stored: StoredHead, num_known: int, vocab_size: int) -> Tensor:
    """Return int64 [num_known] from `d2t`; without one the head must know every token."""
    shifts = stored.tensors.get("d2t")
    if shifts is None:
        if num_known != vocab_size:
            raise ModelLoadError(
                f"{stored.path}: tensor 'd2t' is missing, and lm_head.weight knows {num_known} of "
                f"the target's {vocab_size} tokens"
            )
        return torch.arange(vocab_size)
    if shifts.shape != (num_known,) or shifts.is_floating_point():
        raise ModelLoadError(
            f"{stored.path}: tensor 'd2t' {shifts.dtype} {list(shifts.shape)} must be integers, "
            f"one for each of the {num_known} tokens of lm_head.weight"
        )
    ids = torch.arange(num_known) + shifts.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise ModelLoadError(f"{stored.path}: tensor 'd2t' leads out of {vocab_size} tokens")
    return ids
