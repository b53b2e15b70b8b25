"""Mask of the tokens that a sequence's grammar does not allow next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.sampler.sampling_state import SamplingState

_WORD_BITS = 32


def follow_grammars(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Forbid, in place in `logits` [n, vocab], tokens outside the states' masks."""
    masks = {row: state.mask for row, state in enumerate(states) if state.mask is not None}
    if not masks:
        return
    ruled_out = ~allowed_tokens(torch.stack([*masks.values()]), logits.shape[-1], logits.device)
    for place, row in enumerate(masks):
        logits[row].masked_fill_(ruled_out[place], float("-inf"))


def allowed_tokens(bits: torch.Tensor, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Return bool [n, vocab_size] on `device` from int32 [n, ceil(vocab_size / 32)] on the host."""
    if device.type == "cpu":
        octets = bits.numpy().view(np.uint8)
        flags = np.unpackbits(octets, axis=-1, count=vocab_size, bitorder="little")
        return torch.from_numpy(flags.view(np.bool_))
    # Expanded on the host, the copy would be 32 times as large.
    words = bits.to(device, non_blocking=True).unsqueeze(-1)
    places = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
    return ((words >> places) & 1).bool().flatten(1)[:, :vocab_size]
