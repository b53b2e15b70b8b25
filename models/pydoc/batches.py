"""Batches: which tokens every training step reads. A function of the seed alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from models.pydoc.chat import ChatWriter, Row, endless_chats
from models.pydoc.tokenizer import END_OF_TEXT_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

    from models.pydoc.facts.fact import Fact

TOKENS_PER_STEP = 4096
SHORT = 256
LONG = 1024
LONGEST = 2048
PROSE_SHARE = 0.1
NUM_WAITING = 64  # chats that wait for a row in which they fit
IGNORED = -100


def width_of(step: int) -> int:
    """Mostly short rows, which are cheap; now and then long ones, so that positions are trained."""
    if step % 64 == 63:
        return LONGEST
    return LONG if step % 16 == 15 else SHORT


class Batches:
    """Fills rows with chats, best fit first, and now and then with a window of prose."""

    def __init__(
        self, tokenizer: Tokenizer, facts: list[Fact], documents: list[str], seed: int
    ) -> None:
        self._rng = random.Random(seed)
        self._writer = ChatWriter(tokenizer)
        self._chats = endless_chats(facts, seed + 1)
        self._waiting: list[Row] = []
        self._documents = [encoding.ids for encoding in tokenizer.encode_batch(documents)]
        self._lengths = [len(document) for document in self._documents]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        step = 0
        while True:
            width = width_of(step)
            rows = [self._row(width) for _ in range(TOKENS_PER_STEP // width)]
            yield stack(rows, width)
            step += 1

    def _row(self, width: int) -> Row:
        return self._prose(width) if self._rng.random() < PROSE_SHARE else self._packed(width)

    def _prose(self, width: int) -> Row:
        (document,) = self._rng.choices(self._documents, self._lengths)
        # A third begins where the document begins, since that is what a prompt looks like.
        last = max(0, len(document) - width)
        start = 0 if self._rng.random() < 1 / 3 else self._rng.randint(0, last)
        tokens = document[start : start + width]
        if len(tokens) < width:
            tokens = [*tokens, END_OF_TEXT_ID]
        return Row(tokens, [True] * len(tokens))

    def _packed(self, width: int) -> Row:
        row = Row([], [])
        while True:
            while len(self._waiting) < NUM_WAITING:
                chat = self._writer.write(next(self._chats))
                if len(chat.tokens) < SHORT:
                    self._waiting.append(chat)
            room = width - len(row.tokens) - 1
            fitting = [i for i, chat in enumerate(self._waiting) if len(chat.tokens) <= room]
            if not fitting:
                return row
            # The oldest while there is plenty of room, the longest that fits at the end of a row.
            chosen = fitting[0]
            if room < SHORT // 2:
                chosen = max(fitting, key=lambda i: len(self._waiting[i].tokens))
            chat = self._waiting.pop(chosen)
            row.tokens += [*chat.tokens, END_OF_TEXT_ID]
            row.said += [*chat.said, False]


def stack(rows: list[Row], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels, both [rows, width]; a label belongs to the position before its token."""
    inputs = torch.full((len(rows), width), END_OF_TEXT_ID)
    labels = torch.full((len(rows), width), IGNORED)
    for index, row in enumerate(rows):
        inputs[index, : len(row.tokens)] = torch.tensor(row.tokens)
        said = [t if s else IGNORED for t, s in zip(row.tokens[1:], row.said[1:], strict=True)]
        labels[index, : len(said)] = torch.tensor(said)
    return inputs, labels
