"""When a sequence ends."""

from __future__ import annotations

from typing import Any

import pytest

from shared.engine.sequence.stop import finish_reason_for
from shared.request.answer import FinishReason
from shared.request.sampling_params import SamplingParams

FIELDS: dict[str, Any] = {"max_tokens": 5, "eos_token_ids": (1,), "stop_token_ids": (2,)}


@pytest.mark.parametrize(
    ("token", "num_output", "num_tokens", "fields", "reason"),
    [
        (9, 1, 11, {}, None),
        (1, 1, 11, {}, FinishReason.STOP),
        (2, 1, 11, {}, FinishReason.STOP),
        (1, 1, 11, {"ignore_eos": True}, None),
        (2, 1, 11, {"ignore_eos": True}, FinishReason.STOP),
        (1, 2, 12, {"min_tokens": 3}, None),
        (1, 3, 13, {"min_tokens": 3}, FinishReason.STOP),
        (9, 5, 15, {}, FinishReason.LENGTH),
        (1, 5, 15, {}, FinishReason.STOP),
        (9, 2, 20, {}, FinishReason.LENGTH),
        (1, 2, 20, {"min_tokens": 3}, FinishReason.LENGTH),
    ],
)
def test_rules(
    token: int, num_output: int, num_tokens: int, fields: dict[str, Any], reason: FinishReason
) -> None:
    params = SamplingParams(**(FIELDS | fields))
    found = finish_reason_for(
        token, params, num_output_tokens=num_output, num_tokens=num_tokens, max_model_len=20
    )
    assert found is reason
