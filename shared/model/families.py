"""The supported architectures, as differences from Llama."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class WindowRule(Enum):
    """What `sliding_window` in a config means."""

    NEVER = "the key is ignored"
    EVERY_LAYER = "every layer has the window"
    PER_LAYER = "only with use_sliding_window, in the layers that layer_types or a number name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one architecture reads its config. A bias of None: the config decides."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = False
    qk_norm: bool = False
    #: Values of absent keys; None: derived from the number of heads.
    default_head_dim: int | None = None
    default_num_kv_heads: int | None = None
    window: WindowRule = WindowRule.NEVER
    hidden_is_multiple_of_heads: bool = False


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(mlp_bias=None, hidden_is_multiple_of_heads=True),
    "MistralForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        default_num_kv_heads=8,
        window=WindowRule.EVERY_LAYER,
    ),
    "Qwen2ForCausalLM": Family(
        qkv_bias=True,
        output_bias=False,
        default_num_kv_heads=32,
        window=WindowRule.PER_LAYER,
    ),
    "Qwen3ForCausalLM": Family(
        qk_norm=True,
        default_head_dim=128,
        default_num_kv_heads=32,
        window=WindowRule.PER_LAYER,
    ),
}
