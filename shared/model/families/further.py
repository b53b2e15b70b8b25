"""Layers that predict further tokens: their computation, and what checkpoints call their tensors.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2 (multi-token prediction). A layer
behind the last one reads of each position project([norm(e), norm(h)]): e is the embedding of the
next token, h the decoder's final hidden state. From the norm of what it returns the output head
predicts the token after the next. Embedding and output head are the decoder's own; some files have
copies of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.model.weight_map import LAYERS, NORM, Stored, WeightPart

if TYPE_CHECKING:
    from shared.model.families.naming import Naming
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

EMBEDDING_NORM = WeightPart("embedding_norm")
FEATURE_NORM = WeightPart("feature_norm")
PROJECTION = WeightPart("projection")
#: Where a checkpoint counts such layers among those of its decoder.
_LAYERS = "model.layers."


def further_spec(decoder: DecoderSpec) -> DecoderSpec:
    """Return the description of the first layer behind a decoder's last one.

    It is like the last one that attends.
    """
    last = decoder.layers[max(decoder.attentions)]
    return replace(decoder, layers=(last,), keeps_all_kv=True)


def is_behind_last(name: str, *, num_layers: int, num_further: int) -> bool:
    """Return whether a tensor is, by its name, of one of `num_further` layers behind the last."""
    number = name.removeprefix(_LAYERS).partition(".")[0]
    if not name.startswith(_LAYERS) or not number.isdecimal():
        return False
    return num_layers <= int(number) < num_layers + num_further


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherNaming:
    """Names of the first layer's tensors. In all of them {} is the number of layers before it."""

    #: Of a decoder's layer.
    naming: Naming
    #: What the names of the layer's own parts begin with.
    layer: str
    embedding_norm: str
    feature_norm: str
    projection: str
    norm: str

    def names(self, decoder: DecoderSpec) -> WeightMap:
        """Return the tensors in the checkpoint of this decoder. See `Family.further`."""
        size, number = decoder.hidden_size, decoder.num_layers
        found = {
            f"{name.format(number)}.weight": Stored(part, shape)
            for name, part, shape in (
                (self.embedding_norm, EMBEDDING_NORM, (size,)),
                (self.feature_norm, FEATURE_NORM, (size,)),
                (self.projection, PROJECTION, (size, 2 * size)),
                (self.norm, NORM, (size,)),
            )
        }
        stored, spec = self.layer.format(number), further_spec(decoder)
        return found | self.naming.layer_names(spec, 0, stored=stored, module=f"{LAYERS}.0.")


def behind_layers(naming: Naming) -> FurtherNaming:
    """Return the names of DeepSeek-V3, which counts the layer among those of the decoder."""
    layer = naming.layer
    return FurtherNaming(
        naming=naming,
        layer=layer,
        embedding_norm=f"{layer}enorm",
        feature_norm=f"{layer}hnorm",
        projection=f"{layer}eh_proj",
        norm=f"{layer}shared_head.norm",
    )


def beside_layers(naming: Naming) -> FurtherNaming:
    """Return the names of Qwen3-Next, which has the layer beside the decoder."""
    return FurtherNaming(
        naming=naming,
        layer="mtp.layers.0.",
        embedding_norm="mtp.pre_fc_norm_embedding",
        feature_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        norm="mtp.norm",
    )
