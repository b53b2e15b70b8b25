"""Masks become logits the same way on the host and on a device."""

from __future__ import annotations

from array import array

import pytest
import torch

from shared.engine.sampler.grammar_mask import allowed_tokens, follow_grammars
from shared.engine.sequence.sampling_state import SamplingState
from shared.request.sampling_params import SamplingParams


class _Upward:
    """Only the token after the last one accepted may come; token 40 ends it."""

    def __init__(self) -> None:
        self.last = 30

    @property
    def is_terminated(self) -> bool:
        return self.last == 40

    def fill_mask(self, bits: torch.Tensor, row: int) -> None:
        bits[row] = 0
        word, bit = divmod(self.last + 1, 32)
        bits[row, word] = 1 << bit if bit < 31 else -(2**31)

    def accept(self, token_id: int) -> bool:
        fits = token_id == self.last + 1 and not self.is_terminated
        self.last += fits
        return fits

    def rollback(self, num_tokens: int) -> None:
        self.last -= num_tokens


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


def test_only_rows_with_a_grammar_change_and_drafts_move_it_ahead() -> None:
    grammar = _Upward()
    params = SamplingParams(max_tokens=9)
    plain = SamplingState(params, array("q", [1]), 1)
    here = SamplingState(params, array("q", [1]), 1, grammar)
    ahead = SamplingState(params, array("q", [1]), 1, grammar)
    ahead.draft_ids = (31, 32)
    beyond = SamplingState(params, array("q", [1]), 1, grammar)
    beyond.draft_ids = (31, 7)
    assert here.changes_logits
    assert not plain.changes_logits
    logits = torch.zeros(4, 41)
    follow_grammars(logits, [plain, here, ahead, beyond])
    finite = [row.isfinite().nonzero().flatten().tolist() for row in logits]
    assert finite == [list(range(41)), [31], [33], list(range(41))]
    assert grammar.last == 30
