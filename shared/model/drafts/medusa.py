"""Medusa: heads that predict several tokens from one hidden state, all at once.

T. Cai, Y. Li, Z. Geng, H. Peng, J. D. Lee, D. Chen, T. Dao, "Medusa: Simple LLM Inference
Acceleration Framework with Multiple Decoding Heads" (ICML 2024). Head i reads the hidden state that
a token was sampled from, and predicts the token i + 1 positions after that one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear, silu

from shared.errors import ModelLoadError
from shared.model.drafts.choice import most_likely
from shared.model.drafts.stored import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.drafts.base import Target
    from shared.model.drafts.stored import StoredHead

#: Prefix of the reference implementation before one of the usual names.
_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_PREFIXES = {"medusa_head.": "", "medusa_heads.": ""}
#: Names of some writers: `blocks.N.layers.M.weight` and `lm_heads.N.weight`.
_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_OUTPUT = re.compile(r"lm_heads\.(\d+)\.weight")


def load_medusa(model_dir: Path, target: Target) -> MedusaHeads:
    """Load heads for `target`, onto the default device, in the dtype of its weights.

    The number of heads is that of the stored ones: published configs claim fewer.

    Raises:
        ModelLoadError: they cannot be used; names the file, and the tensor or the field.
    """
    stored = read_head(model_dir, names=_FILES).renamed(_PREFIXES)
    num_layers = _num_layers(stored)
    stored = _with_numbers(stored, num_layers)
    numbers = {name.partition(".")[0] for name in stored.tensors}
    num_heads = len(numbers)
    if num_heads < _at_least_one(stored, ("medusa_num_heads", "num_heads"), 1):
        raise ModelLoadError(
            f"{stored.path.with_name('config.json')}: medusa_num_heads asks for more than the "
            f"{num_heads} heads that are stored"
        )
    size, vocab = target.spec.hidden_size, target.spec.vocab_size
    shape = stored.shape(f"0.{num_layers}.weight")
    if shape != (vocab, size):
        raise ModelLoadError(
            f"{stored.path}: the heads' outputs have shape {list(shape)}, the target's vocab_size "
            f"and hidden_size ask for {[vocab, size]}"
        )
    has_bias = "0.0.linear.bias" in stored.tensors
    heads = MedusaHeads(target, num_heads=num_heads, num_layers=num_layers, has_bias=has_bias)
    stored.fill(heads.weight_targets())
    return heads.eval()


class MedusaHeads(nn.Module):
    """All heads. Weights are uninitialised until they are filled."""

    def __init__(self, target: Target, *, num_heads: int, num_layers: int, has_bias: bool) -> None:
        super().__init__()
        size, vocab, self.dtype = target.spec.hidden_size, target.spec.vocab_size, target.dtype
        self.blocks = [
            [nn.Linear(size, size, bias=has_bias, dtype=self.dtype) for _ in range(num_layers)]
            for _ in range(num_heads)
        ]
        self.outputs = [nn.Linear(size, vocab, bias=False, dtype=self.dtype) for _ in self.blocks]

    @property
    def num_heads(self) -> int:
        """Number of tokens that can be drafted."""
        return len(self.outputs)

    def weight_targets(self) -> Mapping[str, Tensor]:
        """Return the place of each tensor of the checkpoint."""
        targets: dict[str, Tensor] = {}
        for number, (blocks, output) in enumerate(zip(self.blocks, self.outputs, strict=True)):
            for place, block in enumerate(blocks):
                targets[f"{number}.{place}.linear.weight"] = block.weight.detach()
                if block.bias is not None:
                    targets[f"{number}.{place}.linear.bias"] = block.bias.detach()
            targets[f"{number}.{len(blocks)}.weight"] = output.weight.detach()
        return targets

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor, num_heads: int) -> Tensor:
        """Return float32 [num_heads, n, vocab] of hidden states [n, hidden] after the last norm."""
        hidden = hidden.to(self.dtype)
        logits = []
        for blocks, output in zip(self.blocks[:num_heads], self.outputs, strict=False):
            x = hidden
            for block in blocks:
                x = x + silu(linear(x, block.weight, block.bias))
            logits.append(linear(x, output.weight).float())
        return torch.stack(logits)

    def most_likely(self, hidden: Tensor, num_heads: int) -> Tensor:
        """Return int64 [n, num_heads]: each head's most likely token."""
        return torch.stack(
            [most_likely(logits) for logits in self.compute_logits(hidden, num_heads)], dim=-1
        )


def _num_layers(stored: StoredHead) -> int:
    return _at_least_one(stored, ("medusa_num_layers", "num_hidden_layers"), 1)


def _at_least_one(stored: StoredHead, keys: tuple[str, ...], default: int) -> int:
    key = next((key for key in keys if key in stored.raw), None)
    value = default if key is None else stored.raw[key]
    if not isinstance(value, int) or not 1 <= value <= 64:
        raise ModelLoadError(
            f"{stored.path.with_name('config.json')}: {key} must be between 1 and 64, not {value!r}"
        )
    return value


def _with_numbers(stored: StoredHead, num_layers: int) -> StoredHead:
    """Return the head with the reference implementation's names: indexes in lists of modules."""
    names = {}
    for name in stored.tensors:
        block, output = _BLOCK.fullmatch(name), _OUTPUT.fullmatch(name)
        if block is not None:
            names[name] = f"{block[1]}.{block[2]}.linear.{block[3]}"
        elif output is not None:
            names[name] = f"{output[1]}.{num_layers}.weight"
    return stored.renamed(names)
