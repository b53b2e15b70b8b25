"""Hidden states behind an answer's tokens, in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from baton import LLM, RequestOutputKind, SamplingParams
from cli.places import SHIPPED_MODEL
from shared.errors import InvalidRequestError
from tests.fakes.model.hidden_states import BOUND, rows_of_transformers

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = "What does os.path.join do?"
NUM_TOKENS = 6
#: Room for as many tokens, of the shipped model's 256 numbers each.
ALLOWED = {"enable_return_hidden_states": True, "hidden_states_bytes": NUM_TOKENS * 256 * 4}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(SHIPPED_MODEL, dtype="float32", num_blocks=16, **ALLOWED)
    yield made
    made.close()


def params(**fields: object) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": NUM_TOKENS, "ignore_eos": True, "return_hidden_states": True, **fields}
    )


def test_an_answer_has_a_tensor(llm: LLM) -> None:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    found = llm.generate([PROMPT, PROMPT], params(n=2, seed=5), use_tqdm=False)
    for output in found:
        for answer in output.outputs:
            rows = answer.hidden_states
            assert rows is not None
            assert rows.dtype == torch.float32
            want = rows_of_transformers(model, output.prompt_token_ids, answer.token_ids)
            assert rows.shape == want.shape
            np.testing.assert_allclose(rows.numpy(), want, atol=BOUND)
    [plain] = llm.generate(PROMPT, SamplingParams(max_tokens=2), use_tqdm=False)
    assert plain.outputs[0].hidden_states is None


def test_too_many_bytes_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="--hidden-states-bytes"):
        llm.generate(PROMPT, params(max_tokens=NUM_TOKENS + 1), use_tqdm=False)


def test_a_step_shows_the_rows_of_its_tokens(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("a", PROMPT, params(output_kind=RequestOutputKind.DELTA))
    shown = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            [answer] = output.outputs
            assert answer.hidden_states is not None
            assert len(answer.hidden_states) == len(answer.token_ids)
            shown.append(answer.hidden_states)
    assert torch.cat(shown).shape == (NUM_TOKENS, 256)
