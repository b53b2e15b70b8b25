"""Rules out every token that a sequence's grammar does not allow next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.engine.grammar.positions import fill_mask_behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.sequence.sampling_state import SamplingState

_WORD_BITS = 32


def follow_grammars(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Rule out, in place in `logits` [n, vocab], what the states' grammars do not allow."""
    grammars = [
        (row, state.grammar, state.draft_ids)
        for row, state in enumerate(states)
        if state.grammar is not None
    ]
    if not grammars:
        return
    vocab_size = logits.shape[-1]
    num_words = -(-vocab_size // _WORD_BITS)
    bits = torch.empty(len(grammars), num_words, dtype=torch.int32)
    for place, (_, grammar, draft_ids) in enumerate(grammars):
        fill_mask_behind(grammar, draft_ids, bits, place)
    rows = [row for row, _, _ in grammars]
    ruled_out = ~allowed_tokens(bits, vocab_size, logits.device)
    for place, row in enumerate(rows):
        logits[row].masked_fill_(ruled_out[place], float("-inf"))


def allowed_tokens(bits: torch.Tensor, vocab_size: int, device: torch.device) -> torch.Tensor:
    """bool [n, vocab_size] on `device`, of int32 [n, ceil(vocab_size / 32)] on the host."""
    if device.type == "cpu":
        octets = bits.numpy().view(np.uint8)
        flags = np.unpackbits(octets, axis=-1, count=vocab_size, bitorder="little")
        return torch.from_numpy(flags.view(np.bool_))
    # 32 times as much would cross the bus otherwise.
    words = bits.to(device, non_blocking=True).unsqueeze(-1)
    places = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
    return ((words >> places) & 1).bool().flatten(1)[:, :vocab_size]
