"""Small checkpoints with a layer that predicts further tokens, and what it computes.

The reference is the published equations (DeepSeek-V3's report, section 2.2) around a layer of
transformers, which has no such heads itself: float32, no cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import load_file
from torch.nn.functional import linear

from shared.model.random_checkpoint import CheckpointSpec
from tests.fakes.model.draft_reference import part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

VOCAB = 300
_SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "num_heads": 6,
    "num_kv_heads": 2,
    "intermediate_size": 72,
    "vocab_size": VOCAB,
    "has_further": True,
    "seed": 5,
}
_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6,
    "n_group": 3,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
#: Where a config says nothing, the state of each layer has 2 MiB.
DELTA_SIZES: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}
_DELTA: dict[str, Any] = {
    **DELTA_SIZES,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
#: By model type.
SPECS = {
    "deepseek_v3": CheckpointSpec(
        architecture="deepseek_v3",
        num_layers=3,
        # As transformers has it: what is rotated.
        head_dim=6,
        **_SIZES | {"num_kv_heads": 6},
        extra={
            **_EXPERTS,
            "q_lora_rank": 28,
            "kv_lora_rank": 22,
            "qk_nope_head_dim": 18,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
        },
    ),
    "glm4_moe": CheckpointSpec(
        architecture="glm4_moe",
        num_layers=2,
        head_dim=24,
        **_SIZES,
        extra={**_EXPERTS, "use_qk_norm": True, "attention_bias": True},
    ),
    "qwen3_next": CheckpointSpec(
        architecture="qwen3_next",
        num_layers=3,
        head_dim=24,
        **_SIZES,
        extra={
            **_DELTA,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "qwen3_5_text": CheckpointSpec(
        architecture="qwen3_5_text", num_layers=3, head_dim=24, **_SIZES, extra=_DELTA
    ),
}


@dataclass(frozen=True, slots=True)
class _Names:
    """What a checkpoint calls the parts of the head."""

    of_embedding: str
    of_hidden: str
    projection: str
    norm: str
    #: What the names of the layer's own parts begin with.
    layer: str


def _names(num_layers: int, tensors: dict[str, Tensor]) -> _Names:
    if "mtp.fc.weight" in tensors:
        before = "mtp.pre_fc_norm_"
        return _Names(f"{before}embedding", f"{before}hidden", "mtp.fc", "mtp.norm", "mtp.layers.0")
    own = f"model.layers.{num_layers}"
    return _Names(f"{own}.enorm", f"{own}.hnorm", f"{own}.eh_proj", f"{own}.shared_head.norm", own)


class MtpReference:
    """A target of transformers with its head."""

    def __init__(self, path: Path) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        tensors = load_file(path / "model.safetensors")
        self._names = _names(self.model.config.num_hidden_layers, tensors)
        self._tensors = tensors
        last = [layer for layer in self.model.model.layers if getattr(layer, "self_attn", None)][-1]
        self._layer = type(last)(self.model.config, last.self_attn.layer_idx).eval()
        own = part(tensors, f"{self._names.layer}.")
        missing, _ = self._layer.load_state_dict(_fused(own), strict=False)
        assert not missing, missing

    @torch.inference_mode()
    def hidden(self, token_ids: Sequence[int]) -> Tensor:
        """[n, hidden]: the target's final hidden states."""
        ids = torch.tensor([list(token_ids)])
        hidden: Tensor = self.model.model(ids, use_cache=False).last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def guess(self, token_ids: Tensor, features: Tensor, first_position: int = 0) -> Tensor:
        """All positions at once: [n] and [n, hidden] to [n, hidden] after the last norm."""
        positions = torch.arange(len(token_ids))[None] + first_position
        embedded = self.model.model.embed_tokens(token_ids)
        names = self._names
        both = torch.cat(
            (self._normed(embedded, names.of_embedding), self._normed(features, names.of_hidden)),
            dim=-1,
        )
        x = linear(both, self._tensors[f"{names.projection}.weight"])[None]
        future = torch.full((len(token_ids), len(token_ids)), float("-inf")).triu(1)
        angles = self.model.model.rotary_emb(x, positions)
        x = self._layer(
            x, position_embeddings=angles, attention_mask=future[None, None], position_ids=positions
        )
        return self._normed(x[0], names.norm)

    @torch.inference_mode()
    def logits(self, guessed: Tensor) -> Tensor:
        """[n, vocab]: by the target's output head."""
        logits: Tensor = self.model.lm_head(guessed)
        return logits

    def draft(self, token_ids: Sequence[int], num: int, first: int = 0) -> list[int]:
        """The tokens that follow; from position `first` on all is read anew for every token."""
        features = self.hidden(token_ids[:-1])[first:]
        ids, guesses = list(token_ids[first + 1 :]), list[int]()
        for _ in range(num):
            guessed = self.guess(torch.tensor(ids), features, first)[-1:]
            guesses.append(int(self.logits(guessed).argmax()))
            ids.append(guesses[-1])
            features = torch.cat((features, guessed))
        return guesses

    def _normed(self, x: Tensor, name: str) -> Tensor:
        norm = type(self.model.model.norm)(x.shape[-1], eps=self.model.config.rms_norm_eps)
        norm.load_state_dict({"weight": self._tensors[f"{name}.weight"]})
        normed: Tensor = norm(x)
        return normed


def _fused(own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layer's tensors as transformers' modules have them: of all experts in one."""
    found = {name: tensor for name, tensor in own.items() if ".experts." not in name}
    experts = {name: tensor for name, tensor in own.items() if ".experts." in name}
    if not experts:
        return found
    num = 1 + max(int(name.split(".")[2]) for name in experts)
    gates, ups, downs = (
        torch.stack([experts[f"mlp.experts.{n}.{kind}_proj.weight"] for n in range(num)])
        for kind in ("gate", "up", "down")
    )
    found["mlp.experts.gate_up_proj"] = torch.cat((gates, ups), dim=1)
    found["mlp.experts.down_proj"] = downs
    return found
