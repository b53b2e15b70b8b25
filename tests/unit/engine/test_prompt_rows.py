"""States of prompts equal transformers', beside generating requests, however steps are cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shared.engine.prompt_rows import PromptRows
from shared.engine.sequence.events import PromptStates
from shared.engine.step.followers.plan_codec import decode_plan, encode_plan
from shared.engine.step.plan import StepPlan, WantedRows
from shared.errors import InternalError, InvalidRequestError
from tests.fakes.engine.engines import Run, drain, generate, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel

if TYPE_CHECKING:
    from shared.engine.sequence.request import EngineRequest
    from shared.model.loaded import LoadedModel

RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(3, 512, n).tolist() for n in (1, 2, 5, 16, 33, 61)]
#: Begins as the longest, so that its blocks are in the prefix cache.
PROMPTS.append([*PROMPTS[-1][:40], *PROMPTS[2]])
WRITERS = [RNG.integers(3, 512, n).tolist() for n in (3, 21)]


@pytest.fixture(scope="module")
def states(hf_llama: Any) -> list[torch.Tensor]:
    """[n, hidden] of each prompt."""
    with torch.inference_mode():
        return [hf_llama.model(torch.tensor([each])).last_hidden_state[0] for each in PROMPTS]


def expected(states: torch.Tensor, which: PromptRows) -> torch.Tensor:
    match which:
        case PromptRows.LAST:
            return states[-1:]
        case PromptRows.FIRST:
            return states[:1]
        case PromptRows.SUM:
            return states.sum(0, keepdim=True)
        case PromptRows.ALL:
            return states


def rows_of(run: Run, request_id: str) -> tuple[torch.Tensor, int]:
    last = run.events[request_id][-1]
    assert isinstance(last, PromptStates)
    return torch.cat(last.parts), last.num_cached_tokens


def readers() -> list[EngineRequest]:
    return [
        make_request(f"{which}-{n}", prompt, rows=which)
        for n, prompt in enumerate(PROMPTS)
        for which in PromptRows
    ]


SETTINGS: dict[str, dict[str, Any]] = {
    "mixed": {"num_blocks": 256, "max_num_batched_tokens": 512, "max_num_seqs": 64},
    "chunked": {"num_blocks": 256, "max_num_batched_tokens": 11},
    "preempted": {"num_blocks": 19, "max_num_batched_tokens": 9},
    "uncached": {"num_blocks": 256, "enable_prefix_caching": False},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_states(llama: LoadedModel, states: list[torch.Tensor], settings: dict[str, Any]) -> None:
    engine = make_engine(llama, **({"async_scheduling": True} | settings))
    writing = [make_request(f"w{n}", each, max_tokens=30) for n, each in enumerate(WRITERS)]
    alone = generate(engine, *writing)
    for turn in range(2):  # the second time prefixes are cached
        run = generate(engine, *writing, *readers())
        for n, prompt in enumerate(PROMPTS):
            for which in PromptRows:
                rows, num_cached = rows_of(run, f"{which}-{n}")
                wanted = expected(states[n], which)
                assert rows.dtype == torch.float32
                torch.testing.assert_close(rows, wanted, atol=2e-5 * len(prompt), rtol=1e-4)
                may_hit = which is PromptRows.LAST and settings.get("enable_prefix_caching", True)
                if not may_hit:
                    assert num_cached == 0
                elif turn and len(prompt) > 8 and engine.num_blocks > 100:
                    assert num_cached >= (len(prompt) - 1) // 4 * 4 > 0
        for n in range(len(WRITERS)):
            assert run.tokens(f"w{n}") == alone.tokens(f"w{n}")
    stats = engine.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert (stats.counters["num_preemptions"] > 0) == (engine.num_blocks < 100)
    assert engine.reset_prefix_cache() >= 0  # raises if a block is in use


def test_no_drafts(llama: LoadedModel, hf_llama: Any) -> None:
    """The step that computes the last token alone is a decode step but for what it returns."""
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})
    engine = make_engine(llama, num_blocks=64, max_num_batched_tokens=8, speculative_config=config)
    prompt = [7, 8] * 4 + [7]
    run = generate(engine, make_request("r", prompt, rows=PromptRows.LAST))
    with torch.inference_mode():
        wanted = hf_llama.model(torch.tensor([prompt])).last_hidden_state[0]
    torch.testing.assert_close(rows_of(run, "r")[0], wanted[-1:], atol=2e-5, rtol=1e-4)
    assert engine.stats().counters["spec_decode_num_draft_tokens"] == 0


def test_preempted_in_a_prompt(llama: LoadedModel, states: list[torch.Tensor]) -> None:
    """It begins again: nothing of the first try is in the result."""
    engine = make_engine(
        llama, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=4, max_model_len=64
    )
    writing = [make_request(f"w{n}", [9, n + 3], max_tokens=30) for n in range(3)]
    run = generate(engine, *writing, make_request("r", PROMPTS[4], rows=PromptRows.ALL))
    assert len(run.admitted("r")) > 1
    torch.testing.assert_close(rows_of(run, "r")[0], states[4], atol=2e-5, rtol=1e-4)


def test_ends(llama: LoadedModel) -> None:
    engine = make_engine(llama, num_blocks=32, max_num_batched_tokens=8, max_model_len=64)
    engine.add(make_request("gone", PROMPTS[4], rows=PromptRows.ALL))
    run = drain(engine, until=lambda run: run.num_steps == 3)
    engine.abort("gone")
    drain(engine, run)
    assert not isinstance(run.events["gone"][-1], PromptStates)
    engine.reset_prefix_cache()
    long = [3] * 64  # no token follows, so all of the context may be the prompt
    assert (
        len(rows_of(generate(engine, make_request("all", long, rows=PromptRows.ALL)), "all")[0])
        == 64
    )
    for bad, fields in (([], {}), ([3] * 65, {}), ([3], {"resumed_token_ids": (3,)})):
        with pytest.raises(InvalidRequestError):
            engine.add(make_request("bad", bad, rows=PromptRows.LAST, **fields))


def test_states_that_are_not_finite() -> None:
    loaded = FakeLoadedModel()
    loaded.model.forward = lambda *args: torch.full((len(args[0]), 4), torch.nan)  # type: ignore[method-assign]
    run = generate(make_engine(loaded), make_request("nan", [3, 4], rows=PromptRows.SUM))
    assert isinstance(run.failure("nan"), InternalError)


def test_plan_across_processes() -> None:
    plan = StepPlan(wanted_rows=[WantedRows(3, PromptRows.SUM), WantedRows(4, PromptRows.LAST)])
    assert decode_plan(encode_plan(plan)) == plan
