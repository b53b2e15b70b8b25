"""Random adapters that PEFT makes for a row's checkpoint, and what PEFT answers with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers

from tests.fakes.checkpoints.adapters import adapted, logits_of, save_adapter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Of one of them; of two, the first one is the row's own request's.
NAMES = ("one", "two")
#: Of numbers that are added to matrices: large enough to change answers.
STD = 0.1
#: Tokens whose logits differ by less may change places by the order of sums.
NEAR = 1e-3
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_STATES = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
#: By family: ends of names of the modules that take adapters, if they are not the usual ones.
#: Beside experts PEFT takes the names of a dense feed-forward for theirs.
TARGETS: Mapping[str, Sequence[str]] = {
    "gemma4, shared KV": (*_ATTENTION, *_MLP, "per_layer_input_gate", "per_layer_projection"),
    "qwen3_5, states": (*_ATTENTION, *_MLP, *_STATES),
    "qwen3_moe, experts": _ATTENTION,
    "deepseek_v3, latent": _LATENT,
}


class PeftModels:
    """A checkpoint of float32 as transformers has it, and two adapters of it that PEFT made."""

    def __init__(self, family: str, checkpoint: Path, folder: Path) -> None:
        """Write the adapters below `folder`."""
        self._base: Any = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32
        ).eval()
        targets = list(TARGETS.get(family, (*_ATTENTION, *_MLP)))
        configs: list[dict[str, Any]] = [
            {"r": 4, "lora_alpha": 6, "target_modules": targets},
            # Ranks that differ by layer.
            {
                "r": 3,
                "rank_pattern": {r".*\.0\..*": 5},
                "use_rslora": True,
                "target_modules": targets,
            },
        ]
        self._models: dict[str, Any] = {}
        self.folders: dict[str, Path] = {}
        for seed, (name, config) in enumerate(zip(NAMES, configs, strict=True), 1):
            self._models[name] = adapted(self._base, seed=seed, std=STD, **config)
            self.folders[name] = save_adapter(self._models[name], folder / name)

    def check_greedy(self, adapter: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Fail unless each token of a greedy answer is the most likely one after those before.

        `adapter`: its name; empty: the base's answer.
        """
        model = self._models[adapter] if adapter else self._base
        rows = logits_of(model, [*prompt, *answer])[len(prompt) - 1 : -1]
        behind = rows.amax(dim=-1) - rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert float(behind.max()) < NEAR, (adapter, int(behind.argmax()))

    @torch.inference_mode()
    def state(self, adapter: str, text: Sequence[int]) -> torch.Tensor:
        """What the output head reads of the last token: float32 [size]."""
        model = self._models[adapter].get_base_model() if adapter else self._base
        found: torch.Tensor = model.model(torch.tensor([text])).last_hidden_state[0, -1]
        return found


def modules_flag(folders: Mapping[str, Path]) -> str:
    """The value of `--lora-modules`."""
    return json.dumps([f"{name}={folder}" for name, folder in folders.items()])
