"""Small tokenizers made on the spot: byte-level BPE as in Llama 3 or Qwen, and sentencepiece."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HfTokenizer

from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "The quick brown fox jumps over the lazy dog, again and again and again.",
    "Once upon a time there was a baton that was passed from runner to runner.",
    "Привет, мир! 你好,世界!",
    "def main() -> None:\n    print('hello world')\n",
]


def byte_level() -> HfTokenizer:
    """Byte-level BPE with the special tokens of ChatML; id 0 ends an answer."""
    return HfTokenizer.from_str(_trained())


@functools.cache
def _trained() -> str:
    """To train it takes ten times as long as to read it."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_end|>", "<|im_start|>", "<|bos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>")])
    return str(tokenizer.to_str())


def sentencepiece(*, strip: bool = True, metaspace: bool = False) -> HfTokenizer:
    """BPE with byte fallback, decoded as Llama 2 (`strip`), Gemma, or with Metaspace (T5)."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "a", "b", "▁he", "llo", "▁wor", "ld", "é", "你", "<", ">", "x▁y", "0x41"]
    vocab = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = HfTokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if metaspace:
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def save(tokenizer: HfTokenizer, folder: Path, *, chat_template: str | None = CHATML) -> Path:
    """A model directory with everything the router reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|bos|>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def with_bos(tokenizer: HfTokenizer) -> HfTokenizer:
    """The same tokenizer, which now begins every text with <|bos|>."""
    bos = tokenizer.token_to_id("<|bos|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
    )
    return tokenizer


def load() -> Tokenizer:
    """The byte-level tokenizer as the router sees it."""
    return Tokenizer(byte_level(), special_tokens={"eos_token": "<|im_end|>"})
