"""A small random gpt-oss, with harmony's marks in a tokenizer that splits as o200k does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from tests.fakes.families.cases import CASES
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.text.tiny_tokenizer import TEXTS

if TYPE_CHECKING:
    from pathlib import Path

    import transformers

#: Of o200k_harmony, in the order of their ids there.
MARKS = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
    "<|end|>", "<|message|>", "<|call|>",
)  # fmt: skip
ENDS = ("<|return|>", "<|endoftext|>", "<|call|>")
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def harmony_tokenizer() -> HfTokenizer:
    """Return 401 byte-level tokens and the marks: an odd number of them."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=401,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    said = "analysis commentary final assistant to=functions. json system developer user"
    tokenizer.train_from_iterator([*TEXTS, said], trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return tokenizer


def write_harmony_model(folder: Path) -> transformers.PreTrainedModel:
    """Write the checkpoint; return the model of transformers, which is the oracle."""
    tokenizer = harmony_tokenizer()
    model_type, config = CASES["gpt_oss"]
    model = random_model(
        model_type,
        **{
            **config,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": 2048,
            "eos_token_id": [tokenizer.token_to_id(mark) for mark in ENDS],
        },
    )
    save(model, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model
