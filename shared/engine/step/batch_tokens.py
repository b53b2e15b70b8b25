"""Which tokens a step computes, and behind which of them the model's logits are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.buffers import PackedStep


def logit_places(seqs: list[Sequence], sampled: list[int], starts: list[int]) -> list[int]:
    """Of each sampled sequence: where its last token and its drafts are in the batch."""
    if starts[-1] == len(seqs):
        return sampled  # one token each
    return [
        place
        for i in sampled
        for place in range(starts[i + 1] - 1 - len(seqs[i].draft.token_ids), starts[i + 1])
    ]


def fill_token_ids(
    packed: PackedStep,
    seqs: list[Sequence],
    query_lens: list[int],
    firsts: list[int],
    starts: list[int],
) -> int:
    """Known tokens, and where the others come from; returns how many others there are."""
    token_ids, num_fed = packed.arrays["token_ids"], 0
    if starts[-1] == len(seqs):
        # A token that is not known yet gets a zero here: its place says where it comes from.
        token_ids[: len(seqs)] = [
            0 if seq.num_unknown_tokens else seq.token_ids[first]
            for seq, first in zip(seqs, firsts, strict=True)
        ]
    else:
        for i, (seq, first, num) in enumerate(zip(seqs, firsts, query_lens, strict=True)):
            known = 0 if seq.num_unknown_tokens else seq.token_ids[first : first + num]
            end = starts[i + 1] - len(seq.draft.token_ids)
            token_ids[starts[i] : end] = known
            token_ids[end : starts[i + 1]] = seq.draft.token_ids
    fed = [(starts[i], seq.row) for i, seq in enumerate(seqs) if seq.num_unknown_tokens]
    num_fed = len(fed)
    if num_fed:
        fed_rows = packed.arrays["fed_rows"]
        fed_rows[: starts[-1]] = -1
        places, rows = zip(*fed, strict=True)
        fed_rows[list(places)] = rows
    return num_fed
