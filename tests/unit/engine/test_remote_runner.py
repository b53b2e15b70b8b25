"""A runner in another process, told by plans alone, gives the tokens of one in this process."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.llm import LLM
from shared.engine.prompt_hidden import HiddenFormat, PlacedHidden
from shared.engine.sequence.request import EngineRequest
from shared.engine.step.plan import NewBlocks, PromptScore, RowMasks, RowStart, StepPlan
from shared.engine.step.plan_codec import decode_plan, encode_plan
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget
from tests.fakes.engines import Run, drain
from tests.fakes.follower import RemoteRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCAB = 300
PHONE = GrammarSpec(kind=GrammarKind.REGEX, text=r"(\d{3}-){6}")
SHORT_OF_BLOCKS = {
    "num_blocks": 32,
    "block_size": 4,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 32,
}
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})
PROCESSORS = ("tests.fakes.logits_processors:NoRepeat",)

SETTINGS: dict[str, dict[str, Any]] = {
    "synchronous": {"async_scheduling": False},
    "overlapped": {"async_scheduling": True},
    "speculative": {"async_scheduling": True, "speculative_config": NGRAM},
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.7},
    "bias": {"temperature": 0.7, "logit_bias": {5: 2.5, 9: -100.0}, "min_tokens": 3},
    "words": {"temperature": 0.0, "bad_words_token_ids": ((7,), (8, 9)), "stop_token_ids": (3,)},
    "allowed": {"temperature": 1.0, "allowed_token_ids": tuple(range(20, 60))},
    "logprobs": {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
    "logits": {
        "temperature": 0.0,
        "logprobs": 3,
        "prompt_logprobs": 2,
        "logprobs_mode": LogprobsMode.RAW_LOGITS,
    },
    "hidden states": {"temperature": 0.0, "return_hidden_states": True},
    "named tokens": {"temperature": 0.0, "logprobs": 0, "logprob_token_ids": (3, 1)},
    "thinking": {
        "temperature": 0.0,
        "thinking_budget": ThinkingBudget(
            max_tokens=5, thinking=Thinking(begin_token_id=1, end_token_id=7, is_open=True)
        ),
    },
    "processor": {"temperature": 0.0, "extra_args": {"no_repeat": 4}},
    "grammar": {"temperature": 0.8, "grammar": PHONE},
    "late": {"temperature": 0.0, "max_tokens": 3},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("followed")
    write_random_checkpoint(path, CheckpointSpec(num_layers=2, vocab_size=VOCAB))
    return path


def run(llm: LLM) -> Run:
    """Requests of every kind, two of each: there is not room for all of them at a time."""
    eos = llm.tokenizer.eos_token_ids
    for i, (kind, fields) in enumerate(KINDS.items()):
        for j in range(2):
            params = {"max_tokens": 14, "seed": i, "sample_index": j, "eos_token_ids": eos} | fields
            prompt = [(i * 31 + n * (7 + j)) % 90 + 10 for n in range(5 + 9 * j)]
            request = EngineRequest(
                request_id=f"{kind} {j}",
                # Something to guess from.
                prompt_token_ids=(*prompt, *prompt[:4]),
                sampling=SamplingParams(**params),
            )
            llm.engine.add(llm.grammars.ready_now(request))
    return drain(llm.engine)


@pytest.fixture(scope="module")
def remote(model: Path) -> Iterator[RemoteRunner]:
    runner = RemoteRunner(model)
    yield runner
    runner.close()


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_a_runner_in_this_process(
    model: Path, remote: RemoteRunner, name: str
) -> None:
    settings = SHORT_OF_BLOCKS | {"logits_processors": PROCESSORS} | SETTINGS[name]
    settings |= {"enable_return_hidden_states": True}
    here = LLM(model, **settings)
    want = run(here)
    counters = here.engine.stats().counters
    assert counters["num_preemptions"]
    assert bool(counters["spec_decode_num_accepted_tokens"]) == (name == "speculative")
    here.close()

    llm = LLM(model, **settings)
    remote.build(settings)
    llm.engine._steps._runner = remote  # type: ignore[assignment]
    got = run(llm)
    assert llm.engine.kv_memory is not None
    assert not llm.engine.kv_memory.blocks.any()  # nothing was computed here
    llm.close()
    assert set(got.events) == set(want.events)
    for request_id in want.events:
        assert got.new_tokens(request_id) == want.new_tokens(request_id), request_id


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
