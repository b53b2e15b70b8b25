"""Rules out every token that a sequence's grammar does not allow next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.sampler.sampling_state import SamplingState

_WORD_BITS = 32


def follow_grammars(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Rule out, in place in `logits` [n, vocab], what the states' masks do not allow."""
    masks = {row: state.mask for row, state in enumerate(states) if state.mask is not None}
    if not masks:
        return
    ruled_out = ~allowed_tokens(torch.stack([*masks.values()]), logits.shape[-1], logits.device)
    for place, row in enumerate(masks):
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
