"""Prompts for the following model: what it will say is in them, or is not."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.peers.models import FIRST_WORD

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: Tokens between two edits of the code-edit workload, and of each edit.
EDIT_EVERY, EDIT_LENGTH = 24, 3
_JUNK = 6


def code_edit(following: NDArray[np.int64], num_tokens: int, index: int) -> list[int]:
    """A "file" of which the answer is a new version: the same but for an edit every so often.

    At each of them the old version has some other tokens in between.
    """
    random, text = _random(index), _text(following, num_tokens, index)
    prompt: list[int] = []
    for start in range(0, num_tokens, EDIT_EVERY):
        prompt += text[start + 1 : start + 1 + EDIT_EVERY]
        prompt += random.integers(FIRST_WORD, len(following), EDIT_LENGTH).tolist()
    return [*prompt, text[0]]


def new_text(following: NDArray[np.int64], num_tokens: int, index: int) -> list[int]:
    """Random tokens: nothing that the answer says is there, and hardly anything is guessed."""
    random = _random(index)
    prompt: list[int] = random.integers(FIRST_WORD, len(following), num_tokens).tolist()
    return [*prompt, _text(following, 1, index)[0]]


def misleading(following: NDArray[np.int64], num_tokens: int, index: int) -> list[int]:
    """Every pair of tokens of the answer, and something else behind it: all guesses fail."""
    random, text = _random(index), _text(following, num_tokens, index)
    prompt: list[int] = []
    for first, second in pairwise(text):
        junk = random.integers(FIRST_WORD, len(following), _JUNK).tolist()
        prompt += [first, second, *junk]
    return [*prompt, text[0]]


WORKLOADS: dict[str, Callable[[NDArray[np.int64], int, int], list[int]]] = {
    "code edit": code_edit,
    "new text": new_text,
    "misleading": misleading,
}


def _random(index: int) -> np.random.Generator:
    return np.random.default_rng(100 + index)


def _text(following: NDArray[np.int64], num_tokens: int, index: int) -> list[int]:
    """What the model says from some place of its cycle on, that place included."""
    text = [int(_random(index).integers(FIRST_WORD, len(following)))]
    for _ in range(num_tokens):
        text.append(int(following[text[-1]]))
    return text
