"""The families of encoders: BERT, RoBERTa and XLM-R, ModernBERT."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.encoders.spec import EncoderLayerSpec, EncoderSpec
from shared.model.families.sizes import FULL, SLIDING, check_size, read_activation
from shared.model.rope import RopeDefaults, read_rope
from shared.model.spec.decoder import LearnedPositions
from shared.model.spec.feed_forwards import FeedForwardSpec
from shared.model.spec.norms import NormKind, NormSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.model.rope import RopeConfig

_BERT_LAYER = {
    "qkv": "encoder.layer.{0}.attention.self.query encoder.layer.{0}.attention.self.key "
    "encoder.layer.{0}.attention.self.value",
    "output": "encoder.layer.{0}.attention.output.dense",
    "attention_norm": "encoder.layer.{0}.attention.output.LayerNorm",
    "up": "encoder.layer.{0}.intermediate.dense",
    "down": "encoder.layer.{0}.output.dense",
    "mlp_norm": "encoder.layer.{0}.output.LayerNorm",
}
_BERT_NAMES = {
    "embedding": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "token_types": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
}
_MODERN_LAYER = {
    "attention_norm": "layers.{0}.attn_norm",
    "qkv": "layers.{0}.attn.Wqkv",
    "output": "layers.{0}.attn.Wo",
    "mlp_norm": "layers.{0}.mlp_norm",
    "up": "layers.{0}.mlp.Wi",
    "down": "layers.{0}.mlp.Wo",
}
_MODERN_NAMES = {
    "embedding": "embeddings.tok_embeddings.weight",
    "embedding_norm": "embeddings.norm",
    "norm": "final_norm",
}
#: Bases of ModernBERT's rotations, and how many layers apart those are that see all.
_GLOBAL_THETA, _LOCAL_THETA, _FULL_EVERY, _LOCAL = 160_000.0, 10_000.0, 3, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFamily:
    """Encoders whose configs and names are alike."""

    #: Return what a config describes; raises as `Family.describe`.
    describe: Callable[[Mapping[str, Any]], EncoderSpec]
    #: What names may begin with.
    prefixes: tuple[str, ...]
    #: What names of tensors begin with that are of heads, or computed here, and are not read.
    unread: tuple[str, ...]


def describe_bert(raw: Mapping[str, Any]) -> EncoderSpec:
    """Return a BERT: norms of sums, and learned positions."""
    if raw.get("is_decoder") or raw.get("add_cross_attention"):
        raise ModelLoadError("is_decoder or add_cross_attention is set: that is no encoder")
    kind = raw.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ModelLoadError(f"position_embedding_type {kind!r} is not supported; absolute is")
    num_rows = int(raw.get("max_position_embeddings", 512))
    return _encoder(
        raw,
        layers=(EncoderLayerSpec(),) * _num_layers(raw, 12),
        norm=_norm(raw, "layer_norm_eps", 1e-12, has_bias=True),
        is_post_norm=True,
        attention_bias=True,
        positions=LearnedPositions(num_rows=num_rows),
        num_token_types=int(raw.get("type_vocab_size", 2)),
        max_len=num_rows,
        layer_names=_BERT_LAYER,
        names=_BERT_NAMES,
    )


def describe_roberta(raw: Mapping[str, Any]) -> EncoderSpec:
    """Return a RoBERTa or XLM-R: a BERT whose positions begin behind that of padding."""
    bert = describe_bert({"layer_norm_eps": 1e-5, "max_position_embeddings": 514, **raw})
    first = int(raw.get("pad_token_id", 1)) + 1
    num_rows = bert.max_len
    if num_rows <= first:
        raise ModelLoadError(f"max_position_embeddings {num_rows} leaves no position for a token")
    positions = LearnedPositions(num_rows=num_rows, first_row=first)
    return replace(bert, positions=positions, max_len=num_rows - first)


def describe_modern(raw: Mapping[str, Any]) -> EncoderSpec:
    """Return a ModernBERT: rotations, gated feed-forwards, and layers that see a window."""
    num_layers = _num_layers(raw, 22)
    every = int(raw.get("global_attn_every_n_layers") or _FULL_EVERY)
    types = raw.get("layer_types") or [
        SLIDING if number % every else FULL for number in range(num_layers)
    ]
    wrong = set(types) - {FULL, SLIDING}
    if wrong or len(types) != num_layers:
        raise ModelLoadError(f"layer_types must be {num_layers} of {FULL} and {SLIDING}")
    half = int(raw.get("local_attention") or _LOCAL) // 2
    layers = tuple(
        EncoderLayerSpec(
            window=half + 1 if kind == SLIDING else None,
            rope=_modern_rope(raw, kind),
            has_first_norm=number > 0,
        )
        for number, kind in enumerate(types)
    )
    return _encoder(
        raw,
        layers=layers,
        norm=_norm(raw, "norm_eps", 1e-5, has_bias=bool(raw.get("norm_bias", False))),
        is_post_norm=False,
        attention_bias=bool(raw.get("attention_bias", False)),
        max_len=int(raw.get("max_position_embeddings", 8192)),
        layer_names=_MODERN_LAYER,
        names=_MODERN_NAMES,
    )


def _modern_rope(raw: Mapping[str, Any], kind: str) -> RopeConfig:
    own = (raw.get("rope_parameters") or {}).get(kind) or {}
    is_full = kind == FULL
    key = "global_rope_theta" if is_full else "local_rope_theta"
    theta = own.get("rope_theta") or raw.get(key) or (_GLOBAL_THETA if is_full else _LOCAL_THETA)
    scaling = raw.get("rope_scaling") or {}
    return read_rope(
        {"rope_scaling": {**scaling, **own, "rope_theta": float(theta)}},
        head_dim=_size(raw, "hidden_size", 768) // _size(raw, "num_attention_heads", 12),
        max_positions=int(raw.get("max_position_embeddings", 8192)),
        defaults=RopeDefaults(theta=float(theta)),
    )


def _encoder(raw: Mapping[str, Any], **own: Any) -> EncoderSpec:
    is_modern = not own["is_post_norm"]
    hidden, num_heads = _size(raw, "hidden_size", 768), _size(raw, "num_attention_heads", 12)
    if hidden % num_heads:
        raise ModelLoadError(f"hidden_size {hidden} is not a multiple of {num_heads} heads")
    check_size("max_position_embeddings", own["max_len"])
    inner = _size(raw, "intermediate_size", 1152 if is_modern else 3072)
    key = "hidden_activation" if is_modern else "hidden_act"
    feed_forward = FeedForwardSpec(
        inner_size=inner,
        bias=bool(raw.get("mlp_bias", False)) if is_modern else True,
        activation=read_activation(raw, key, default="gelu"),
        is_gated=is_modern,
    )
    return EncoderSpec(
        architecture=str(raw["architectures"][0]),
        vocab_size=_size(raw, "vocab_size", None),
        hidden_size=hidden,
        num_heads=num_heads,
        feed_forward=feed_forward,
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        raw=raw,
        **own,
    )


def _size(raw: Mapping[str, Any], key: str, default: int | None) -> int:
    value = int(raw[key] if default is None else raw.get(key, default))
    check_size(
        {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}.get(key, key), value
    )
    return value


def _num_layers(raw: Mapping[str, Any], default: int) -> int:
    return _size(raw, "num_hidden_layers", default)


def _norm(raw: Mapping[str, Any], key: str, default: float, *, has_bias: bool) -> NormSpec:
    return NormSpec(eps=float(raw.get(key, default)), kind=NormKind.LAYER, has_bias=has_bias)


_BERT_UNREAD = ("pooler.", "cls.", "classifier.", "lm_head.", "embeddings.position_ids")
BERT = EncoderFamily(describe=describe_bert, prefixes=("bert.", ""), unread=_BERT_UNREAD)
ROBERTA = EncoderFamily(
    describe=describe_roberta, prefixes=("roberta.", "xlm_roberta.", ""), unread=_BERT_UNREAD
)
MODERN_BERT = EncoderFamily(
    describe=describe_modern,
    prefixes=("model.", ""),
    unread=("head.", "decoder.", "classifier."),
)
#: By model type.
FAMILIES: Mapping[str, EncoderFamily] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "modernbert": MODERN_BERT,
}
