"""A row of logits behind drafts gives what it would give behind tokens, for any parameters."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.sampler.processors.attached import ProcessorSet
from shared.engine.sampler.sampler import sample
from shared.engine.sampler.sampling_state import SamplingState
from shared.engine.step.plan import RowStart
from shared.engine.step.tokens.choice import DeviceChooser
from shared.engine.step.tokens.row_states import RowState
from shared.engine.step.tokens.verification import Drafted, verify
from shared.request.grammar.spec import Thinking
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

PROCESSED = LogprobsMode.PROCESSED_LOGPROBS
VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
THOUGHTS = ThinkingBudget(
    max_tokens=2, thinking=Thinking(begin_token_id=1, end_token_id=7, is_open=True)
)
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.3, "seed": 5},
    "filtered": {"temperature": 1.0, "top_k": 6, "top_p": 0.9, "min_p": 0.02, "seed": 6},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    "seeded penalties": {"temperature": 1.0, "seed": 7, "frequency_penalty": 2.0},
    "bias": {"logit_bias": {2: 3.0, 4: -3.0}},
    "allowed": {"allowed_token_ids": (1, 2, 3), "temperature": 1.0, "seed": 8},
    "bad words": {"bad_words_token_ids": ((2, 3), (7,), (5, 6, 7))},
    "min tokens": {"min_tokens": 4, "stop_token_ids": (0, 1, 2, 3)},
    "logprobs": {"logprobs": 2, "temperature": 0.7, "seed": 9},
    "thinking": {"thinking_budget": THOUGHTS},
    "processed": {
        "logprobs": 2,
        "temperature": 0.7,
        "top_k": 9,
        "seed": 9,
        "logprobs_mode": PROCESSED,
    },
    "named tokens": {"logprobs": 0, "logprob_token_ids": (3, 1), "temperature": 0.7, "seed": 9},
}


def row(params: dict[str, Any]) -> RowState:
    params = {"max_tokens": 20, "temperature": 0.0} | params
    sampling = SamplingParams(**params).with_seed()
    needs_host = sampling.changes_logits or sampling.logprobs is not None
    tokens = array("q", PROMPT if needs_host else ())
    return RowState(RowStart(0, sampling, needs_host, tokens, len(PROMPT)), ProcessorSet())


def drafted(params: dict[str, Any], draft: Seq[int], probs: torch.Tensor | None = None) -> Drafted:
    return Drafted(row(params), len(PROMPT), draft, probs)


def one_by_one(rows: torch.Tensor, params: dict[str, Any], draft: Seq[int]) -> list[Any]:
    """Without speculation: the token of each row, as long as it is what the draft says."""
    found: list[Any] = []
    state = SamplingState(row(params).params, array("q", PROMPT), len(PROMPT))
    for place, logits in enumerate(rows):
        found += sample(logits.clone().unsqueeze(0), [state])
        token_id = found[-1].token_id
        if token_id is None or place == len(draft) or token_id != draft[place]:
            return found
        state.token_ids.append(token_id)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_those_without_speculation(seed: int) -> None:
    """All kinds in one batch, each with a draft that is right for so many tokens."""
    generator = torch.Generator().manual_seed(seed)
    checked: list[Drafted] = []
    expected, blocks = [], []
    for i, params in enumerate(PARAMS.values()):
        num = (i + seed) % 5
        rows = 2 * torch.randn(num + 1, VOCAB, generator=generator)
        draft: list[int] = []
        for num_right in range(num + 1):
            # Find out what is right, one token after the other.
            alone = one_by_one(rows, params, [*draft, -1])
            if num_right < num:
                draft.append(alone[-1].token_id)
        if num and seed % 2:
            draft[num // 2] = (draft[num // 2] + 1) % VOCAB
        checked.append(drafted(params, draft))
        blocks.append(rows)
        expected.append(one_by_one(rows, params, draft))
    found = verify(torch.cat(blocks), checked, DeviceChooser("torch"))
    for verified, one in zip(found, expected, strict=True):
        assert verified.token_ids == [s.token_id for s in one]
        assert verified.logprobs == [s.logprobs for s in one if s.logprobs is not None]
        assert verified.num_accepted == len(one) - 1
        assert not verified.is_stuck
    kept = [row.state.sampling for row in checked if row.state.sampling is not None]
    assert kept
    assert all(state.token_ids.tolist() == PROMPT for state in kept)


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"logit_bias": {1: 1.0}}])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_row_without_a_choice_ends_it(params: dict[str, Any], drawn: bool) -> None:
    rows = torch.full((3, VOCAB), -20.0)
    rows[0, 4] = 20.0
    rows[1] = float("nan")
    probs = torch.nn.functional.one_hot(torch.tensor([4, 4]), VOCAB).float() if drawn else None
    (verified,) = verify(rows, [drafted(params, [4, 4], probs)], DeviceChooser("torch"))
    assert (verified.token_ids, verified.num_accepted, verified.is_stuck) == ([4], 1, True)


def test_drawn_drafts_have_logprobs_too() -> None:
    rows = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    raw = rows.log_softmax(dim=-1)
    params = {"temperature": 1.0, "logprobs": 1, "frequency_penalty": 0.5}
    probs = torch.full((2, VOCAB), 1 / VOCAB)
    (verified,) = verify(rows, [drafted(params, [2, 3], probs)], DeviceChooser("torch"))
    assert len(verified.logprobs) == len(verified.token_ids) == verified.num_accepted + 1
    for place, (token_id, record) in enumerate(
        zip(verified.token_ids, verified.logprobs, strict=True)
    ):
        assert record.chosen.token_id == token_id
        assert record.chosen.logprob == pytest.approx(float(raw[place, token_id]))


def test_drawn_drafts_have_the_numbers_of_tokens_without_drafts() -> None:
    rows = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    params = {
        "temperature": 0.6, "top_k": 7, "logprobs": VOCAB, "frequency_penalty": 0.5, "seed": 3,
        "logprobs_mode": PROCESSED,
    }  # fmt: skip
    probs = torch.full((2, VOCAB), 1 / VOCAB)
    (verified,) = verify(rows.clone(), [drafted(params, [2, 3], probs)], DeviceChooser("torch"))
    expected = one_by_one(rows, params, verified.token_ids[:-1])
    for record, one in zip(verified.logprobs, expected, strict=False):
        assert one.logprobs is not None
        assert sorted(t.logprob for t in record.top) == sorted(t.logprob for t in one.logprobs.top)
