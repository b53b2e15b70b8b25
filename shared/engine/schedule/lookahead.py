"""Room in a step for drafts: token budget, and blocks after a sequence's last token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sequence.draft import NO_DRAFT, Draft

if TYPE_CHECKING:
    from shared.engine.schedule.block_manager import BlockManager
    from shared.engine.schedule.output import SchedulerOutput
    from shared.engine.sequence.sequence import Sequence


def add_drafts(
    seqs: list[Sequence], output: SchedulerOutput, blocks: BlockManager, *, num_spare_blocks: int
) -> None:
    """Add as much of the sequences' drafts to the step as there is room for.

    Call it after every running sequence has its one token: no sequence waits, or is preempted, for
    a draft. Drafts are cut to the part that the step computes.
    """
    for seq in seqs:
        draft, num = seq.draft, 0
        if seq in output.num_new_tokens:
            wanted = min(len(draft.token_ids), output.budget)
            num = blocks.grow_ahead(seq, wanted, num_spare_blocks=num_spare_blocks)
        if num:
            output.add_draft(seq, num)
        seq.draft = first_of(draft, num)


def first_of(draft: Draft, num_tokens: int) -> Draft:
    """Return the beginning of a draft."""
    if num_tokens >= len(draft.token_ids):
        return draft if draft.token_ids else NO_DRAFT
    if not num_tokens:
        return NO_DRAFT
    probs = None if draft.probs is None else draft.probs[:num_tokens]
    return Draft(draft.token_ids[:num_tokens], probs)
