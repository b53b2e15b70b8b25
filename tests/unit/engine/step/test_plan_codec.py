"""Plans as bytes."""

from __future__ import annotations

from array import array

import torch

from shared.engine.prompt_hidden import HiddenFormat, PlacedHidden
from shared.engine.step.followers.plan_codec import decode_plan, encode_plan
from shared.engine.step.plan import NewBlocks, PromptScore, RowMasks, RowStart, StepPlan
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.sampling_params import SamplingParams

PHONE = GrammarSpec(kind=GrammarKind.REGEX, text=r"(\d{3}-){6}")


def test_all_of_a_plan_arrives() -> None:
    params = SamplingParams(
        max_tokens=7,
        temperature=0.7,
        seed=2**64 - 1,
        logit_bias={3: 0.1},
        allowed_token_ids=(1, 2),
        bad_words_token_ids=((1, 2), (3,)),
        extra_args={"a": (1, 2.5), "b": "x"},
        grammar=PHONE,
        prompt_logprobs=2,
    )
    form = HiddenFormat(
        layers=(1, 3), final=True, dtype="bfloat16", row_size=9, row_bytes=18, rows_per_block=4
    )
    plan = StepPlan(
        rows=[3, 1],
        firsts=[8, 0],
        num_new_tokens=[3, 4],
        token_ids=[1, 2, 3, 4, 5, 6, 7],
        fed=[0],
        fed_rows=[2],
        sampled=[0],
        num_drafts={0: 2},
        draft_probs={0: torch.rand(2, 5)},
        is_synchronous=True,
        starts=[RowStart(3, params, True, array("q", [2**40, 1]), 2)],
        new_blocks=[NewBlocks(3, 1, 7, array("i", [9, 8]))],
        new_tokens={1: array("q", [4])},
        masks=[RowMasks(0, torch.tensor([[-1], [5], [-(2**31)]], dtype=torch.int32))],
        scores=[PromptScore(1, [4, 5], 2)],
        hidden={1: PlacedHidden(form, 3, 1, (4, 7))},
    )
    again = decode_plan(encode_plan(plan))
    assert torch.equal(again.draft_probs.pop(0), plan.draft_probs.pop(0))
    (mask,), (told,) = again.masks, plan.masks
    assert (mask.place, mask.bits.tolist()) == (told.place, told.bits.tolist())
    again.masks, plan.masks = [], []
    assert again == plan
