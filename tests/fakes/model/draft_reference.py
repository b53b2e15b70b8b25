"""EAGLE, EAGLE-3 and Medusa heads as their definitions: float32, dense attention, no cache.

They read the tensors of a checkpoint by their published names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear, silu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """[n, heads, dim], halves rotated against each other."""
    dim = x.shape[-1]
    angles = positions[:, None] / theta ** (torch.arange(0, dim, 2) / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attention(
    x: Tensor, tensors: Mapping[str, Tensor], raw: Mapping[str, Any], positions: Tensor
) -> Tensor:
    heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
    q, k, v = (
        linear(x, tensors[f"self_attn.{name}_proj.weight"]).unflatten(-1, (num, -1))
        for name, num in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    q, k = (rotated(part, positions, raw["rope_theta"]) for part in (q, k))
    k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(-2)
    return linear(mixed, tensors["self_attn.o_proj.weight"])


def mlp(x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    gate, up = (linear(x, tensors[f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return linear(silu(gate) * up, tensors["mlp.down_proj.weight"])


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


class EagleReference:
    """Guesses the feature of the next position."""

    def __init__(self, tensors: Mapping[str, Tensor], raw: Mapping[str, Any]) -> None:
        self.tensors, self.raw, self.eps = tensors, raw, raw["rms_norm_eps"]

    def features(self, hidden: Tensor) -> Tensor:
        return hidden

    def guess(self, token_ids: Tensor, features: Tensor, first_position: int = 0) -> Tensor:
        """All positions at once: [n] and [n, hidden] to [n, hidden]."""
        positions = torch.arange(len(token_ids)) + first_position
        embedded = self.tensors["embed_tokens.weight"][token_ids]
        both = torch.cat((embedded, features), dim=-1)
        x = linear(both, self.tensors["fc.weight"], self.tensors["fc.bias"])
        for number in range(self.raw["num_hidden_layers"]):
            own = part(self.tensors, f"layers.{number}.")
            normed = x
            if number:
                normed = normalised(x, own["input_layernorm.weight"], self.eps)
            x = x + attention(normed, own, self.raw, positions)
            x = x + mlp(normalised(x, own["post_attention_layernorm.weight"], self.eps), own)
        return x


class Eagle3Reference:
    """Goes on from its own states; knows some of the tokens."""

    def __init__(self, tensors: Mapping[str, Tensor], raw: Mapping[str, Any]) -> None:
        self.tensors, self.raw, self.eps = tensors, raw, raw["rms_norm_eps"]

    def features(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.tensors["fc.weight"])

    def guess(self, token_ids: Tensor, features: Tensor, first_position: int = 0) -> Tensor:
        own, eps = part(self.tensors, "midlayer."), self.eps
        positions = torch.arange(len(token_ids)) + first_position
        embedded = self.tensors["embed_tokens.weight"][token_ids]
        both = torch.cat(
            (
                normalised(embedded, own["input_layernorm.weight"], eps),
                normalised(features, own["hidden_norm.weight"], eps),
            ),
            dim=-1,
        )
        x = features + attention(both, own, self.raw, positions)
        return x + mlp(normalised(x, own["post_attention_layernorm.weight"], eps), own)

    def logits(self, guessed: Tensor) -> Tensor:
        normed = normalised(guessed, self.tensors["norm.weight"], self.eps)
        return linear(normed, self.tensors["lm_head.weight"])

    def most_likely(self, guessed: Tensor) -> Tensor:
        best = self.logits(guessed).argmax(-1)
        return best + self.tensors["d2t"][best]


def medusa_logits(tensors: Mapping[str, Tensor], hidden: Tensor, head: int, layers: int) -> Tensor:
    own = part(tensors, f"medusa_head.{head}.")
    for block in range(layers):
        inner = linear(hidden, own[f"{block}.linear.weight"], own[f"{block}.linear.bias"])
        hidden = hidden + silu(inner)
    return linear(hidden, own[f"{layers}.weight"])
