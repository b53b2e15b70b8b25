"""Check of drafts against the model, and the token after the accepted ones.

A sequence with k drafts has k + 1 rows of logits: row i follows its tokens and the first i drafts.
Drafts that were chosen, not drawn, are compared with the token that would be sampled without them,
with the random number of its own position: so the answer is the same with and without speculation,
for every seed, and a draft is accepted with the probability that the model gives it. Drawn drafts
are accepted or rejected by `rejection`. Everything that a row's sampling parameters use, such as
penalties and bad words, sees the drafts before the row as tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from shared.engine.sampler.logprobs import output_logprobs
from shared.engine.sampler.sampler import Sampled, adjust, sample
from shared.engine.sampler.scores import put_processed, raw_scores
from shared.engine.step.tokens.choice import NOTHING
from shared.engine.step.tokens.rejection import accept_drawn, distribution

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    import torch

    from shared.engine.sampler.sampling_state import SamplingState
    from shared.engine.step.tokens.choice import TokenChooser
    from shared.engine.step.tokens.row_states import RowState
    from shared.request.answer import PositionLogprobs
    from shared.request.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a step for one sequence."""

    #: The accepted drafts and one more token.
    token_ids: list[int]
    #: One per token, if requested.
    logprobs: list[PositionLogprobs]
    num_accepted: int
    #: Whether no token was left to choose after these: the sequence cannot continue.
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Drafted:
    """A sequence with the drafts, perhaps none, that a step checks."""

    state: RowState
    #: Position of the token after its own, which is the first draft's.
    position: int
    draft_ids: Seq[int] = ()
    #: float32 [len(draft_ids), vocab]: the distributions of drafts that were drawn.
    probs: torch.Tensor | None = None
    #: As in `RowMasks`; None without a grammar.
    masks: torch.Tensor | None = None

    def ahead(self, num_drafts: int) -> SamplingState:
        """Return the sampling state after this number of drafts. Only if the row needs the host."""
        sampling = self.state.sampling
        assert sampling is not None
        mask = None if self.masks is None else self.masks[num_drafts]
        return sampling.ahead(self.draft_ids[:num_drafts], mask)


def verify(logits: torch.Tensor, rows: Seq[Drafted], chooser: TokenChooser) -> list[Verified]:
    """Check every sequence's drafts.

    logits: float32 [sum of 1 + k, vocab], which may be overwritten.
    """
    ends = list(accumulate(1 + len(row.draft_ids) for row in rows))
    starts = [0, *ends[:-1]]
    drawn = {
        i: _accept_drawn(logits[starts[i] : ends[i]], row)
        for i, row in enumerate(rows)
        if row.probs is not None and not row.state.is_greedy
    }
    sampled = _sample_rows(logits, rows, chooser)
    return [
        drawn[i] if i in drawn else _compare(sampled[start:end], row.draft_ids)
        for i, (row, start, end) in enumerate(zip(rows, starts, ends, strict=True))
    ]


def _sample_rows(logits: torch.Tensor, rows: Seq[Drafted], chooser: TokenChooser) -> list[Sampled]:
    """Return the result of every row of `logits`, given all drafts before it as tokens."""
    each = [(row, num) for row in rows for num in range(1 + len(row.draft_ids))]
    simple = [at for at, (row, _) in enumerate(each) if not row.state.needs_host]
    if len(simple) == len(each):
        return _choose_rows(logits, each, chooser)
    others = [at for at, (row, _) in enumerate(each) if row.state.needs_host]
    states = [row.ahead(num) for row, num in (each[at] for at in others)]
    others_chosen = sample(logits[others], states, chooser.implementation)
    found = dict(zip(others, others_chosen, strict=True))
    if simple:
        some = _choose_rows(logits[simple], [each[at] for at in simple], chooser)
        found |= zip(simple, some, strict=True)
    return [found[at] for at in range(len(each))]


def _choose_rows(
    logits: torch.Tensor, rows: Seq[tuple[Drafted, int]], chooser: TokenChooser
) -> list[Sampled]:
    states = [row.state for row, _ in rows]
    positions = [row.position + num for row, num in rows]
    tokens = chooser.choose(logits, states, positions).tolist()
    return [Sampled(None if token == NOTHING else token) for token in tokens]


def _compare(rows: Seq[Sampled], draft_ids: Seq[int]) -> Verified:
    """Return the rows of one sequence up to the first that contradicts its draft."""
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


def _accept_drawn(logits: torch.Tensor, row: Drafted) -> Verified:
    """Do the same for drafts with a distribution: logits [k + 1, vocab], unchanged."""
    params = row.state.params
    assert row.probs is not None
    adjusted = logits.clone()
    if row.state.needs_host:
        adjust(adjusted, [row.ahead(num) for num in range(len(logits))])
    scores = None if params.logprobs is None else _scores(logits, adjusted, params)
    token_ids, num_accepted = accept_drawn(
        distribution(adjusted, params),
        row.probs,
        list(row.draft_ids),
        params,
        first_position=row.position,
    )
    records: list[PositionLogprobs] = []
    if scores is not None and token_ids:
        records = output_logprobs(scores[: len(token_ids)], token_ids, [params] * len(token_ids))
    return Verified(token_ids, records, num_accepted, is_stuck=len(token_ids) == num_accepted)


def _scores(logits: torch.Tensor, adjusted: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return what is reported of the rows of one sequence; both [k + 1, vocab] stay as they are."""
    each = [params] * len(logits)
    scores = raw_scores(logits, each)
    put_processed(scores, adjusted, each)
    return scores
