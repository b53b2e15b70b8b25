"""A config.json from the header of a GGUF file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import ConfigError
from shared.gguf.architectures import find_architecture

if TYPE_CHECKING:
    from shared.gguf.header import StoredTensor
    from shared.gguf.values import Values

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
#: Divisors of frequencies: of all contexts, of short ones, of long ones.
FREQUENCIES = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_DTYPES = {"F32": "float32", "F16": "float16"}
#: The ramp of its YaRN begins and ends between dimensions.
_EXACT_RAMP = "gpt-oss"
#: Most frequencies of a head.
_MOST_FREQUENCIES = 4096


def make_config(values: Values) -> dict[str, Any]:
    """Return what a checkpoint's config.json would say.

    Raises:
        ConfigError: the architecture is not known, or a value is missing or wrong.
    """
    own = find_architecture(values)
    embedding = values.header.tensors.get(EMBEDDING)
    if embedding is None:
        raise ConfigError(f"{values.header.path}: tensor {EMBEDDING!r} is missing")
    heads = values.whole("attention.head_count")
    kv_heads = values.find_whole("attention.head_count_kv")
    config = {
        "architectures": [own.hf_name],
        "model_type": own.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": values.whole("embedding_length"),
        "intermediate_size": values.find_whole("feed_forward_length"),
        "num_hidden_layers": values.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": _head_dim(values, heads),
        "max_position_embeddings": values.whole("context_length"),
        "rms_norm_eps": values.find_number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in values.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in values.tensors,
        "tie_word_embeddings": HEAD not in values.tensors,
        "torch_dtype": _dtype(values),
        "bos_token_id": values.find_id("tokenizer.ggml.bos_token_id"),
        "eos_token_id": values.find_id("tokenizer.ggml.eos_token_id"),
        **_rope(values),
        **own.own_keys(values),
    }
    # Families know what a key is without its value.
    return {key: value for key, value in config.items() if value is not None or key in _NULLS}


#: Keys whose absence means another value.
_NULLS = frozenset({"sliding_window", "attn_logit_softcapping", "final_logit_softcapping"})


def _head_dim(values: Values, heads: int) -> int:
    own, value = (values.find_whole(f"attention.{key}_length") for key in ("key", "value"))
    if value is not None and value != own:
        raise ConfigError(
            f"{values.header.path}: attention.key_length {own} and attention.value_length {value} "
            "differ, which is not supported"
        )
    return own or values.whole("embedding_length") // max(1, heads)


def _dtype(values: Values) -> str:
    """The type that most numbers have, or bfloat16 if they are of few bits."""
    sizes: Counter[str] = Counter()
    for tensor in values.header.tensors.values():
        sizes[tensor.type.name] += tensor.num_values
    ((most, _),) = sizes.most_common(1)
    return _DTYPES.get(most, "bfloat16")


def _rope(values: Values) -> dict[str, Any]:
    heads = values.whole("attention.head_count")
    head_dim, rotated = _head_dim(values, heads), values.find_whole("rope.dimension_count")
    found: dict[str, Any] = {"rope_theta": values.find_number("rope.freq_base") or 10_000.0}
    if rotated is not None and head_dim and rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    scaling = _by_tensors(values) or _by_values(values)
    return found if scaling is None else {**found, "rope_scaling": scaling}


def _by_tensors(values: Values) -> dict[str, Any] | None:
    """A scheme whose divisors are written out, as those of Llama 3.1 and Phi-3 are."""
    of_all, short, long = (values.header.tensors.get(name) for name in FREQUENCIES)
    context = values.whole("context_length")
    if of_all is not None:
        factors = _numbers(values, of_all)
        own = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return {**own, "rope_type": "longrope", "original_max_position_embeddings": context}
    if short is None or long is None:
        return None
    original = values.find_whole("rope.scaling.original_context_length") or context
    scaling = {
        "rope_type": "longrope",
        "short_factor": _numbers(values, short),
        "long_factor": _numbers(values, long),
        "original_max_position_embeddings": original,
    }
    factor = values.find_number("rope.scaling.attn_factor")
    return scaling if factor is None else {**scaling, "attention_factor": factor}


def _by_values(values: Values) -> dict[str, Any] | None:
    kind = values.find_text("rope.scaling.type") or "none"
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind}
    scaling["factor"] = values.find_number("rope.scaling.factor")
    original = values.find_whole("rope.scaling.original_context_length")
    if original:
        scaling["original_max_position_embeddings"] = original
    factor = values.find_number("rope.scaling.attn_factor")
    if factor is not None:
        scaling["attention_factor"] = factor
    if values.text("general.architecture") == _EXACT_RAMP:
        scaling["truncate"] = False
    for key in ("beta_fast", "beta_slow"):
        value = values.find_number(f"rope.scaling.yarn_{key}")
        if value is not None:
            scaling[key] = value
    return scaling


def _numbers(values: Values, tensor: StoredTensor) -> list[float]:
    if tensor.type.name != "F32" or tensor.num_values > _MOST_FREQUENCIES:
        raise ConfigError(
            f"{values.header.path}: tensor {tensor.name!r} of type {tensor.type.name} and shape "
            f"{list(tensor.shape)} has no frequencies"
        )
    with tensor.path.open("rb") as file:
        file.seek(tensor.start)
        data = file.read(tensor.num_bytes)
    return [float(each) for each in np.frombuffer(data, dtype="<f4")]
