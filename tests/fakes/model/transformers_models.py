"""Random models of transformers, the oracle that ours is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.initialization import no_init_weights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Odd on purpose: 6 heads over 2 key/value heads of 80, which is neither a power of two nor
#: hidden / heads.
ODD_SIZES: dict[str, Any] = {
    "vocab_size": 321,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 80,
    "max_position_embeddings": 512,
    "sliding_window": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def random_model(
    model_type: str, *, seed: int = 0, std: float = 0.3, **config: Any
) -> transformers.PreTrainedModel:
    """A float32 model whose every parameter, norms and biases too, is random.

    What is `...` in `config` is not among its settings.
    """
    given = {key: value for key, value in {**ODD_SIZES, **config}.items() if value is not ...}
    settings = transformers.AutoConfig.for_model(model_type, **given)
    # Its own numbers would be overwritten.
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    model.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("norm" in name), std, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0.0, std, generator=generator)
            elif name.endswith("layer_scalar"):
                buffer.normal_(1.0, std, generator=generator)
    return model


def save(model: transformers.PreTrainedModel, path: Path) -> Path:
    """Write the model's directory."""
    model.save_pretrained(path)
    return path


@torch.inference_mode()
def greedy(
    model: transformers.PreTrainedModel, prompt: Sequence[int], num_tokens: int
) -> list[int]:
    """What `generate` answers."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


@torch.inference_mode()
def logits_after(
    model: transformers.PreTrainedModel, prompt: Sequence[int], answer: Sequence[int]
) -> torch.Tensor:
    """float32 [len(answer), vocab]: the logits that each token of the answer is chosen from."""
    ids = torch.tensor([[*prompt, *answer]])
    out: torch.Tensor = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return out


def random_prompt(length: int, *, vocab_size: int, seed: int) -> list[int]:
    """Token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (length,), generator=generator).tolist()
