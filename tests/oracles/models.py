"""Small models for the libraries to quantise."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

#: Token ids, and the prompt of a recording.
VOCAB_SIZE = 16
PROMPT_IDS = [7, 3, 15, 2, 11]


def small_llama(dtype: torch.dtype, *, inner: int = 64, hidden: int = 32) -> torch.nn.Module:
    """A Llama of one layer, in which keys and values are narrower than queries."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("norm" in name), 0.3)
    return model.to(dtype)


def calibration(num: int = 4, length: int = 16) -> list[torch.Tensor]:
    """Token ids [1, length]."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB_SIZE, (1, length), generator=generator) for _ in range(num)]


def some_inputs(columns: int) -> torch.Tensor:
    """Float32 [tokens, columns]: small and large tokens, a positive one, one of zeros."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, columns, generator=generator) * torch.tensor([0.1, 1, 5, 1, 20, 0])[:, None]
    x[3] = x[3].abs()
    return x


def save_with_tokenizer(model: torch.nn.Module, folder: str) -> None:
    """Write a model whose tokenizer has a word for each of its ids."""
    words = models.WordLevel({f"w{id_}": id_ for id_ in range(VOCAB_SIZE)}, unk_token="w0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="w1", eos_token="w2"
    ).save_pretrained(folder)
