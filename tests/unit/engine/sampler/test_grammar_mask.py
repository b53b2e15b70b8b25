"""Masks become logits the same way on the host and on a device."""

from __future__ import annotations

from array import array

import pytest
import torch

from shared.engine.sampler.grammar_mask import allowed_tokens, follow_grammars
from shared.engine.sampler.sampling_state import SamplingState
from shared.request.sampling_params import SamplingParams


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 97])
def test_bits_are_read_alike_on_host_and_device(vocab_size: int) -> None:
    num_words = -(-vocab_size // 32)
    bits = torch.randint(-(2**31), 2**31, (5, num_words), dtype=torch.int32)
    bits[0], bits[1] = 0, -1
    on_host = allowed_tokens(bits, vocab_size, torch.device("cpu"))
    assert on_host.shape == (5, vocab_size)
    for row in range(5):
        for token_id in range(vocab_size):
            word = int(bits[row, token_id // 32])
            assert on_host[row, token_id] == bool(word >> token_id % 32 & 1)
    on_device = allowed_tokens(bits, vocab_size, torch.device("meta"))
    assert on_device.shape == on_host.shape
    shifted = (bits.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)) & 1
    assert torch.equal(shifted.bool().flatten(1)[:, :vocab_size], on_host)


def test_only_rows_with_a_mask_change() -> None:
    params = SamplingParams(max_tokens=9)
    plain, masked = (SamplingState(params, array("q", [1]), 1) for _ in range(2))
    masked.mask = torch.tensor([0, 1 << 7], dtype=torch.int32)
    behind = masked.ahead([5], torch.tensor([-(2**31), 0], dtype=torch.int32))
    assert masked.changes_logits
    assert not plain.changes_logits
    assert behind.token_ids.tolist() == [1, 5]
    logits = torch.zeros(4, 41)
    follow_grammars(logits, [plain, masked, behind, masked.ahead([5])])
    finite = [row.isfinite().nonzero().flatten().tolist() for row in logits]
    assert finite == [list(range(41)), [39], [31], list(range(41))]
