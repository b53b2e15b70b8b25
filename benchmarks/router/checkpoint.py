"""A folder that the router takes for a model: a byte-level tokenizer whose words are stamps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.router.stamps import FIRST_STAMP_ID, NUM_STAMPS, stamp_text

if TYPE_CHECKING:
    from pathlib import Path

MODEL_NAME = "stamps"
END = "<|end|>"
MAX_MODEL_LEN = 2**17
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def model_name(number: int, num_models: int) -> str:
    """Return the model of a stream or a worker of this number: they take turns."""
    place = number % num_models
    return f"{MODEL_NAME}-{place}" if place else MODEL_NAME


def write_checkpoint(folder: Path) -> None:
    """Fill `folder` with a tokenizer, its settings and the model's size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [END, *alphabet]
    # In the byte-level alphabet a space is spelled Ġ.
    tokens += [stamp_text(stamp).replace(" ", "Ġ") for stamp in range(NUM_STAMPS)]
    if tokens.index("Ġ000000") != FIRST_STAMP_ID:
        raise AssertionError("the alphabet of bytes has another size")
    vocab = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"eos_token": END, "chat_template": CHAT_TEMPLATE})
    _write(folder / "config.json", {"vocab_size": len(tokens), "eos_token_id": 0})


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
