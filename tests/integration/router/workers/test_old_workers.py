"""Workers that are older than what a request asks for: they would pass it over without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.router.answer import pipeline
from shared.errors import BatonError, NoWorkerError, UnsupportedError
from shared.generation.grammar import choice_grammar
from shared.identity import Role
from shared.request.grammar.spec import Thinking
from shared.request.logprobs_mode import LogprobsMode
from shared.rpc.protocol import CONSTRAINTS_MINOR
from tests.fakes.scripted.decode import Script, Step, say

if TYPE_CHECKING:
    from tests.integration.router.conftest import Bench

OLD = CONSTRAINTS_MINOR - 1
THINKING = Thinking(begin_token_id=3, end_token_id=4, is_open=True)
CONSTRAINED: list[dict[str, Any]] = [
    {"grammar": choice_grammar(["yes", "no"], param="guided_choice")},
    {"extra_args": {"bias": 1}},
    {"logprobs": 0, "logprob_token_ids": (3, 4)},
    {"logprobs": 1, "logprobs_mode": LogprobsMode.RAW_LOGITS},
    {"thinking_token_budget": 3, "thinking": THINKING},
    {"return_hidden_states": True},
]


@pytest.mark.parametrize("params", CONSTRAINED)
async def test_only_workers_that_understand_get_it(bench: Bench, params: dict[str, Any]) -> None:
    old = await bench.add_worker(protocol_minor=OLD)
    new = await bench.add_worker()
    for _ in range(4):
        await bench.answer(**params)
    assert (len(old.requests), len(new.requests)) == (0, 4)
    for _ in range(8):
        await bench.answer()
    assert old.requests, "what it understands, it serves"


@pytest.mark.parametrize("params", CONSTRAINED)
async def test_where_nobody_understands_it_is_refused(bench: Bench, params: dict[str, Any]) -> None:
    old = await bench.add_worker(protocol_minor=OLD)
    with pytest.raises(UnsupportedError, match=old.name):
        await bench.answer(**params)
    assert not old.requests
    await bench.answer()
    assert len(old.requests) == 1


async def test_an_old_prefill_worker_does_not_sample_its_first_token(bench: Bench) -> None:
    """The decode worker computes the prompt itself."""
    await bench.add_worker(role=Role.PREFILL, name="old", protocol_minor=OLD)
    worker = await bench.add_worker()
    await bench.answer(**CONSTRAINED[0])
    assert not worker.requests[-1].prefill_candidates
    await bench.answer()
    assert worker.requests[-1].prefill_candidates[0].worker.name == "old"
    await bench.add_worker(role=Role.PREFILL, name="new")
    await bench.answer(**CONSTRAINED[0])
    [candidate] = worker.requests[-1].prefill_candidates
    assert candidate.worker.name == "new"


async def test_an_answer_does_not_go_on_where_its_grammar_is_unknown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather no more of it than something that does not fit."""
    monkeypatch.setattr(pipeline, "WAIT_FOR_WORKER_S", 0.1)
    await bench.add_worker(protocol_minor=OLD)
    await bench.add_worker(Script([Step(token_ids=bench.ids("y"))], finish=None), name="broken")
    with pytest.raises(BatonError, match="broken") as caught:
        await bench.answer(**CONSTRAINED[0])
    assert not isinstance(caught.value, NoWorkerError | UnsupportedError)


async def test_a_worker_that_comes_back_newer_is_asked(bench: Bench) -> None:
    """An upgrade is another incarnation."""
    old = await bench.add_worker(protocol_minor=OLD, name="decode-0")
    with pytest.raises(UnsupportedError):
        await bench.answer(**CONSTRAINED[0])
    await bench.parts.registry.deregister(old.record.worker)
    await bench.add_worker(say(5), name="decode-0")
    await bench.answer(**CONSTRAINED[0])
