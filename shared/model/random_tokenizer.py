"""A byte-level tokenizer for checkpoints that were not trained: every byte is a token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Token ids for config.json."""

    eos_id: int
    pad_id: int


def write_tokenizer(out: Path, vocab_size: int, max_length: int) -> SpecialIds:
    """Write the tokenizer's files for a vocabulary of exactly `vocab_size`.

    Ids 0 to 2 are special, the next 256 are bytes, the others are unused words.

    Raises:
        ConfigError: the vocabulary has no room for all bytes.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fixed = [*SPECIAL_TOKENS, *alphabet]
    if vocab_size < len(fixed):
        raise ConfigError(f"vocab_size must be at least {len(fixed)}, not {vocab_size}")
    words = fixed + [f"<|unused_{i}|>" for i in range(vocab_size - len(fixed))]
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(out / "tokenizer.json"))
    end_of_text, _, end_of_turn = SPECIAL_TOKENS
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_turn,
        "pad_token": end_of_text,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(out / "tokenizer_config.json", settings)
    eos_id, pad_id = words.index(end_of_turn), words.index(end_of_text)
    _write_json(out / "generation_config.json", {"eos_token_id": [eos_id, pad_id]})
    return SpecialIds(eos_id=eos_id, pad_id=pad_id)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
