"""A checkpoint of a real size that says something foreseeable.

A model with random weights says nothing that one could look up. Here the weights are random too,
and every matrix is computed as in any model of the shape, but the layers' outputs are scaled down,
so that the last token's embedding reaches the output head almost unchanged, and the head is set so
that each token has one successor. All tokens from `FIRST_WORD` on lie on one cycle. So the text is
known in advance, a prompt can hold as much of it as a workload wants, and time is that of the
shape. It says nothing about how often a trained model's text can be guessed.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

import numpy as np
from safetensors.torch import load_file, save_file

from benchmarks.peers.models import FIRST_WORD, MODELS
from benchmarks.peers.places import home
from shared.model.drafts.random_heads import write_sliced_checkpoint
from shared.model.random_checkpoint import write_random_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

#: What the layers add to the last token's embedding, relative to what random weights would.
_WHISPER = 1e-3
_VERSION = 1


def following_folder(name: str) -> Path:
    """The checkpoint in the shape of one of the models of `benchmarks.peers`, written if need be.

    Raises:
        KeyError: no such model.
    """
    spec = dataclasses.replace(MODELS[name], tie_word_embeddings=False)
    folder = home() / "models" / f"following-{name}-{_VERSION}"
    if not (folder / "config.json").is_file():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_random_checkpoint(unfinished, spec)
        _teach(unfinished / "model.safetensors", successors(spec.vocab_size))
        unfinished.rename(folder)
    return folder


def sliced_folder(name: str) -> Path:
    """Its first layer as a model of its own: a draft that is always right. Written if need be."""
    source = following_folder(name)
    folder = source.with_name(source.name + "-sliced")
    if not (folder / "config.json").is_file():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_sliced_checkpoint(unfinished, source, num_layers=1)
        unfinished.rename(folder)
    return folder


def successors(vocab_size: int) -> NDArray[np.int64]:
    """The token that follows each: one cycle over the words; anything else leads into it."""
    words = np.random.default_rng(1).permutation(np.arange(FIRST_WORD, vocab_size))
    following = np.full(vocab_size, words[0])
    following[words] = np.roll(words, -1)
    return following


def _teach(path: Path, following: NDArray[np.int64]) -> None:
    weights = load_file(path)
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(_WHISPER)
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    head.mul_(_WHISPER)
    words = np.arange(FIRST_WORD, len(following))
    head[following[words]] = embedding[words]
    save_file(weights, path, metadata={"format": "pt"})
