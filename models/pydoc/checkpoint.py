"""Write the model the way Hugging Face lays one out, and nothing beyond what loading needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from models.pydoc.batches import LONGEST
from models.pydoc.tokenizer import CHAT_TEMPLATE, END, END_ID, END_OF_TEXT, END_OF_TEXT_ID, START

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM
ENDS = [END_ID, END_OF_TEXT_ID]


def write_checkpoint(network: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in network.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "config.json", _config(network))
    _write(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": ENDS, "pad_token_id": END_OF_TEXT_ID},
    )
    special = {"eos_token": END, "pad_token": END_OF_TEXT, "additional_special_tokens": [START]}
    _write(folder / "special_tokens_map.json", special)
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": LONGEST,
            "clean_up_tokenization_spaces": False,
            **special,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _config(network: LlamaForCausalLM) -> dict[str, Any]:
    config = network.config
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
        "max_position_embeddings", "rms_norm_eps", "attention_bias", "mlp_bias",
        "tie_word_embeddings",
    )  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{name: getattr(config, name) for name in names},
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": ENDS,
        "pad_token_id": END_OF_TEXT_ID,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
