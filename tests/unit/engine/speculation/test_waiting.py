"""Steps overlap until a guess is to be expected."""

from __future__ import annotations

import pytest

from tests.fakes.engine.engines import (
    StepMode,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)
from tests.fakes.engine.proposers import custom


@pytest.mark.parametrize("mode", StepMode)
def test_nobody_waits_for_a_guess_that_is_not_expected(mode: StepMode) -> None:
    config = custom("FakeOracle", num=4, may_find=False)
    engine = make_engine(mode=mode, speculative_config=config)
    run = generate(engine, make_request("a", [1, 2, 3], max_tokens=21))
    assert run.tokens("a") == expected_tokens([1, 2, 3], 21)
    drafts = engine.stats().counters["spec_decode_num_drafts"]
    overlaps = mode in (StepMode.OVERLAPPED, StepMode.RECORDED)
    assert drafts == (0 if overlaps else 4)
