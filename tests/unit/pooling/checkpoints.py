"""Tiny random checkpoints with vectors, and transformers' models of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from pathlib import Path

_SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 70,
}
_LONG = {**_SMALL, "num_hidden_layers": 4, "max_position_embeddings": 300}
_MODERN = {
    **_LONG,
    "local_attention": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
_DECODER = {**_LONG, "num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1}
_DECODER |= {"eos_token_id": 2}
_GEMMA = {**_DECODER, "num_hidden_layers": 7, "head_dim": 12, "query_pre_attn_scalar": 12}
_GEMMA |= {"sliding_window": 9, "use_bidirectional_attention": True}
_QWEN3 = {**_DECODER, "head_dim": 10}

#: By name: a class of transformers and the values of its config.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _SMALL),
    "roberta": ("RobertaModel", {**_SMALL, "pad_token_id": 1}),
    "xlmr": ("XLMRobertaModel", {**_SMALL, "type_vocab_size": 1, "pad_token_id": 1}),
    "modern": ("ModernBertModel", _MODERN),
    "gemma": ("Gemma3TextModel", _GEMMA),
    "qwen3": ("Qwen3Model", _QWEN3),
    "mistral": ("MistralModel", {**_DECODER, "sliding_window": None}),
    "bert_scores": ("BertForSequenceClassification", {**_SMALL, "num_labels": 1}),
    "bert_labels": ("BertForSequenceClassification", {**_SMALL, "num_labels": 3}),
    "xlmr_scores": (
        "XLMRobertaForSequenceClassification",
        {**_SMALL, "num_labels": 1, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    "modern_cls": ("ModernBertForSequenceClassification", {**_MODERN, "num_labels": 2}),
    "modern_mean": (
        "ModernBertForSequenceClassification",
        {**_MODERN, "num_labels": 2, "classifier_pooling": "mean", "norm_bias": True},
    ),
    "qwen3_labels": ("Qwen3ForSequenceClassification", {**_QWEN3, "num_labels": 3}),
    "qwen3_head": ("Qwen3ForCausalLM", {**_QWEN3, "tie_word_embeddings": True}),
}


def write(folder: Path, name: str, **changes: Any) -> Any:
    """Write a checkpoint, with other values in its config; return its model."""
    class_name, values = MODELS[name]
    made: Any = getattr(transformers, class_name)
    torch.manual_seed(3)
    model = made(made.config_class(**{**values, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms differ from 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def states(model: Any, token_ids: tuple[int, ...], **more: Any) -> torch.Tensor:
    """Return transformers' [n, hidden] of a text alone."""
    with torch.inference_mode():
        body = getattr(model, "base_model", model)
        out: torch.Tensor = body(torch.tensor([token_ids]), **more).last_hidden_state[0]
    return out


def logits(model: Any, token_ids: tuple[int, ...], **more: Any) -> torch.Tensor:
    """Return transformers' logits of a text alone: of labels, or of tokens behind its last one."""
    with torch.inference_mode():
        out: torch.Tensor = model(torch.tensor([token_ids]), **more).logits[0]
    return out if out.ndim == 1 else out[-1]


def put_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    put_json(path, {**json.loads(path.read_text(encoding="utf-8")), **changes})


def put_modules(folder: Path, *modules: str) -> None:
    """Write modules.json: names like `Pooling`, or `Pooling:folder`."""
    entries = []
    for number, module in enumerate(modules):
        kind, _, path = module.partition(":")
        own = "" if kind == "Transformer" else path or f"{number}_{kind}"
        entries.append(
            {
                "idx": number,
                "name": str(number),
                "path": own,
                "type": f"sentence_transformers.models.{kind}",
            }
        )
    put_json(folder / "modules.json", entries)
