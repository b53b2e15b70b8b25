"""Rows that the host must know get the same tokens as those that the library chooses itself."""

from __future__ import annotations

from array import array

from kernels.native.library import load_library
from shared.engine.sampler.processors.attached import ProcessorSet
from shared.engine.sampler.sampler import sample
from shared.engine.sampler.sampling_state import SamplingState
from shared.engine.step.plan import RowStart
from shared.engine.step.tokens.choice import NativeChooser
from shared.engine.step.tokens.row_states import RowState
from shared.request.sampling_params import SamplingParams
from tests.fakes.kernels.tensors import random
from tests.suites.kernels.sampling import FILTERS

PROMPT = array("q", [1, 2, 3])


def test_log_probabilities_change_no_token() -> None:
    params = [
        SamplingParams(max_tokens=1, seed=seed, **fields)  # type: ignore[arg-type]
        for seed, fields in enumerate(FILTERS.values())
    ]
    rows = [RowState(RowStart(0, each, False, PROMPT[:0], 3), ProcessorSet()) for each in params]
    logits = random(len(params), 3001) * 3
    library = load_library()
    pool = library.baton_pool_new(2, None, 0)
    alone = NativeChooser(pool).choose(logits.clone(), rows, [3] * len(rows)).tolist()
    library.baton_pool_delete(pool)
    states = [SamplingState(each, PROMPT[:], 3) for each in params]
    sampled = sample(logits.clone(), states, NativeChooser.implementation)
    assert [each.token_id for each in sampled] == alone
