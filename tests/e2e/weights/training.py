"""A training script: real gradient steps on a tiny model, each version saved to a folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: High, so that each step changes greedy answers.
LEARNING_RATE = 3e-2
NUM_SEQUENCES, SEQUENCE_LEN = 4, 24


class Trainer:
    """Trains a copy of a checkpoint's model on random tokens."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        """Begin with the weights of `checkpoint`; versions go to sub-folders of `folder`."""
        self._checkpoint = checkpoint
        self._folder = folder
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32
        )
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        self._random = torch.Generator().manual_seed(5)

    def step(self, version: str) -> Path:
        """Take one step, and return the folder with the new weights."""
        size = (NUM_SEQUENCES, SEQUENCE_LEN)
        tokens = torch.randint(self._model.config.vocab_size, size, generator=self._random)
        loss = self._model(input_ids=tokens, labels=tokens).loss
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        path = self._folder / version
        self._model.save_pretrained(path)
        for each in self._checkpoint.glob("tokenizer*"):
            shutil.copy(each, path)
        return path


@torch.inference_mode()
def greedy(path: Path, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> list[list[int]]:
    """What transformers answers with the weights of a folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(num_tokens):
            logits = model(input_ids=ids).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=-1)
        answers.append(ids[0, len(prompt) :].tolist())
    return answers
