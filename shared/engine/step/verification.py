"""Which drafts the model agrees with, and what it says behind the last of these.

A sequence with k drafts has k + 1 rows of logits: row i follows its tokens and the first i drafts.
Drafts that were chosen, not drawn, are compared with the token that would be sampled without them,
with the number of its own position: so the answer is the same with and without speculation, for
every seed, and a draft is accepted with the probability that the model gives it. Drawn drafts are
accepted or rejected by `rejection`. Whatever a row's sampling parameters look at, such as
penalties and bad words, sees the drafts in front of the row as tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.sampler import Sampled, adjust, sample
from shared.engine.step.rejection import accept_drawn, distribution
from shared.engine.step.token_choice import NOTHING, choose_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    import torch

    from shared.engine.sequence.sequence import Sequence
    from shared.request.answer import PositionLogprobs


@dataclass(frozen=True, slots=True)
class Verified:
    """What a step gave for one sequence."""

    #: The accepted drafts and one token more.
    token_ids: list[int]
    #: One per token, if they are wanted.
    logprobs: list[PositionLogprobs]
    num_accepted: int
    #: Behind these tokens none was left to choose: the sequence cannot go on.
    is_stuck: bool = False


def verify(logits: torch.Tensor, seqs: Seq[Sequence]) -> list[Verified]:
    """Check every sequence's draft, which may be empty.

    logits: float32 [sum of 1 + k, vocab], which may be overwritten.
    """
    ends = list(accumulate(1 + len(seq.draft.token_ids) for seq in seqs))
    starts = [0, *ends[:-1]]
    drawn = {
        i: _accept_drawn(logits[starts[i] : ends[i]], seq)
        for i, seq in enumerate(seqs)
        if seq.draft.probs is not None and not seq.is_greedy
    }
    rows = _sample_rows(logits, seqs)
    return [
        drawn[i] if i in drawn else _compare(rows[start:end], seq.draft.token_ids)
        for i, (seq, start, end) in enumerate(zip(seqs, starts, ends, strict=True))
    ]


def _sample_rows(logits: torch.Tensor, seqs: Seq[Sequence]) -> list[Sampled]:
    """What every row gives when all drafts in front of it are tokens.

    This is where a further restriction of a row, which depends on the drafts in front of it, has
    to be applied to `logits`: nothing has been chosen yet.
    """
    row_seqs: list[Sequence] = []
    ahead: list[int] = []
    for seq in seqs:
        num = 1 + len(seq.draft.token_ids)
        row_seqs += [seq] * num
        ahead += range(num)
    simple = [row for row, seq in enumerate(row_seqs) if not seq.needs_host_tokens]
    if len(simple) == len(row_seqs):
        return _choose_rows(logits, row_seqs, ahead)
    others = [row for row, seq in enumerate(row_seqs) if seq.needs_host_tokens]
    states = [
        row_seqs[row].sampling_state.ahead(row_seqs[row].draft.token_ids[: ahead[row]])
        for row in others
    ]
    found = dict(zip(others, sample(logits[others], states), strict=True))
    if simple:
        some = _choose_rows(
            logits[simple], [row_seqs[i] for i in simple], [ahead[i] for i in simple]
        )
        found |= zip(simple, some, strict=True)
    return [found[row] for row in range(len(row_seqs))]


def _choose_rows(logits: torch.Tensor, seqs: Seq[Sequence], ahead: Seq[int]) -> list[Sampled]:
    tokens = choose_tokens(logits, seqs, ahead).for_host.tolist()
    return [Sampled(None if token == NOTHING else token) for token in tokens]


def _compare(rows: Seq[Sampled], draft_ids: Seq[int]) -> Verified:
    """Rows of one sequence, up to the first that contradicts its draft."""
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] = []
    for place, row in enumerate(rows):
        if row.token_id is None:
            return Verified(token_ids, logprobs, place, is_stuck=True)
        token_ids.append(row.token_id)
        if row.logprobs is not None:
            logprobs.append(row.logprobs)
        if place < len(draft_ids) and draft_ids[place] != row.token_id:
            return Verified(token_ids, logprobs, place)
    return Verified(token_ids, logprobs, len(draft_ids))


def _accept_drawn(logits: torch.Tensor, seq: Sequence) -> Verified:
    """The same for a draft with a distribution: logits [k + 1, vocab], left as they are."""
    draft, state = seq.draft, seq.sampling_state
    assert draft.probs is not None
    states = [state.ahead(draft.token_ids[:i]) for i in range(len(logits))]
    adjusted = logits.clone()
    adjust(adjusted, states)
    token_ids, num_accepted = accept_drawn(
        distribution(adjusted, state.params),
        draft.probs,
        list(draft.token_ids),
        state.params,
        first_position=state.position,
    )
    records: list[PositionLogprobs] = []
    if state.params.logprobs is not None and token_ids:
        raw = logits[: len(token_ids)].log_softmax(dim=-1)
        records = position_logprobs(raw, token_ids, [state.params.logprobs] * len(token_ids))
    return Verified(token_ids, records, num_accepted, is_stuck=len(token_ids) == num_accepted)
